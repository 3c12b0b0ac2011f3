"""Random collectives against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mpi4c10d.conftest import Completed
from tests.tiers import deep


@pytest.mark.parametrize(("ranks", "first", "number"), [(2, 0, 300), (3, 300, 300), deep(4, 10_000, 5_000)])
def test_random_collectives_compute_what_numpy_computes(
    run_ranks: Callable[..., Completed], ranks: int, first: int, number: int
) -> None:
    done = run_ranks(ranks, "random_collectives.py", str(first), str(number), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done") == ranks


@pytest.mark.parametrize(("ranks", "first", "number"), [(2, 600, 100), deep(3, 20_000, 2_000)])
def test_random_collectives_on_open_mpi_compute_what_numpy_computes(
    run_ranks: Callable[..., Completed], on_open_mpi: dict[str, str], ranks: int, first: int, number: int
) -> None:
    done = run_ranks(ranks, "random_collectives.py", str(first), str(number), timeout=600, **on_open_mpi)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done") == ranks
