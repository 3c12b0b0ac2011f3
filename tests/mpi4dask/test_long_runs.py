"""What takes minutes or gigabytes; `make soak` is the third of these."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(3600),
]
Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_hundred_thousand_garbage_strings_on_the_socket_have_no_effect(
    run_ranks: Run, certificate: Path, tmp_path: Path
) -> None:
    results, scenario = tmp_path / "results.json", "garbage_on_the_socket_has_no_effect"
    limits = {"MPI4DASK_GARBAGE": "100000", "MPI4DASK_LIMIT": "3000"}
    run_ranks("mpich", 1, "scenarios.py", str(results), str(certificate), scenario, timeout=3500, **limits)
    assert json.loads(results.read_text()) == {scenario: ["ok"]}


@pytest.mark.parametrize("direct", ["auto", "off"])
def test_a_frame_of_more_than_two_gibibytes_comes_whole(run_ranks: Run, direct: str) -> None:
    """It takes 5 GiB of memory."""
    done = run_ranks("mpich", 2, "huge.py", timeout=1000, DASK_DISTRIBUTED__COMM__MPI__DIRECT=direct)
    assert done.returncode == 0, done.stderr
