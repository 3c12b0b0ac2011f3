"""Random collectives against NumPy."""

from __future__ import annotations

import json
import os
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


@pytest.mark.deep
def test_random_collectives_on_torch_2_14_compute_what_numpy_computes(
    run_ranks: Callable[..., Completed], on_torch_214: dict[str, str]
) -> None:
    done = run_ranks(2, "random_collectives.py", "30000", "300", timeout=600, **on_torch_214)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done") == 2


@pytest.mark.deep
@pytest.mark.parametrize("ranks", [2, 3])
def test_threads_compute_what_numpy_computes_for_some_time(run_ranks: Callable[..., Completed], ranks: int) -> None:
    """HIDL_SOAK_SECONDS sets the time."""
    seconds = float(os.environ.get("HIDL_SOAK_SECONDS", "60"))
    limits = {"timeout": 600 + 2 * seconds, "MALLOC_ARENA_MAX": "1"}  # arenas of threads grow for minutes
    done = run_ranks(ranks, "soak.py", str(seconds), "3", "0", **limits)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["calls"] >= 150
    assert found["growth"] < 30, found  # MiB
