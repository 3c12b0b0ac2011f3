"""Programs that end while operations and callbacks are under way end with their own status."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.mpi4c10d.conftest import Completed


@pytest.mark.parametrize(
    ("how", "number", "status"),
    [
        ("leaves", 10, 0),
        ("destroys the group", 5, 0),
        ("has workers", 2, 0),
        ("waits in a callback", 2, 0),
        ("waits in a thread", 2, 0),
        ("raises", 3, 1),
    ],
)
def test_a_program_with_work_under_way_ends_with_its_own_status(
    run_program: Callable[..., Completed], how: str, number: int, status: int
) -> None:
    done = run_program("exits.py", how, str(number))
    assert json.loads(done.stdout) == {str(status): number}, done.stderr
    assert "terminate called" not in done.stderr
    assert "MPI routine" not in done.stderr  # called after MPI_Finalize
