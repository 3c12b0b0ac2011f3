"""Clusters of unmodified distributed over mpi://, and many connections among several ranks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.deep
def test_a_killed_worker_closes_all_its_connections_and_its_work_is_done_again(run_ranks: Run, tmp_path: Path) -> None:
    result = tmp_path / "seen.json"
    done = run_ranks("openmpi", 4, "dead_rank.py", str(result), options=("--enable-recovery",))
    assert result.exists(), done.stdout + done.stderr
    assert json.loads(result.read_text()) == {"total": sum(n * n for n in range(80)), "closed": 10}


@pytest.mark.deep
def test_a_nannys_worker_talks_over_the_socket(run_ranks: Run, tmp_path: Path) -> None:
    result = tmp_path / "seen.json"
    done = run_ranks("mpich", 2, "nanny.py", str(result))
    assert result.exists(), done.stdout + done.stderr
    assert json.loads(result.read_text()) == {"total": 499500, "bytes": 30_000_000}


@pytest.mark.deep
def test_random_messages_closes_and_aborts_among_four_ranks_lose_nothing(run_ranks: Run) -> None:
    done = run_ranks("openmpi", 4, "soak.py", "3", DASK_DISTRIBUTED__COMM__MPI__SPIN="0s")
    assert done.returncode == 0, done.stdout + done.stderr
