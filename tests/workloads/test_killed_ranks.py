"""Shared memory of killed ranks whose age cannot be judged. Slurm's own is in ``tests/runs/test_until_done.py``."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

CALL = "import os; from hidl_workloads.killed_ranks import remove_shared_memory as call; call(os.environ)"


def fnv(text: str) -> int:
    """FNV-1a of 32 bits (draft-eastlake-fnv)."""
    found = 0x811C9DC5
    for byte in text.encode():
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found


@pytest.fixture
def memory() -> Iterator[tuple[str, Path]]:
    """The id of a step, and a file of the name that MPICH gives to its memory."""
    step = f"{uuid.uuid4().hex}.0"
    file = Path("/dev/shm") / f"mpich_shm_{fnv(step):x}_0"
    file.write_bytes(bytes(64))
    yield step, file
    file.unlink(missing_ok=True)


def said(step: str, **variables: str) -> str:
    """Return what a rank prints that no Slurm daemon has started, before MPI starts."""
    environment = {"PYTHONPATH": str(REPOSITORY), "SLURM_RESTART_COUNT": "1", "PMI_JOBID": step, **variables}
    done = subprocess.run([sys.executable, "-c", CALL], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def test_the_first_rank_of_a_node_reports_memory_of_unknown_age(memory: tuple[str, Path]) -> None:
    step, file = memory
    text = said(step, SLURM_LOCALID="0")
    assert text.startswith(f"hidl: {file} on ")
    assert text.count("\n") == 1
    assert "may be memory of killed ranks of this job" in text
    assert said(step, PMI_JOBID="other", PMIX_NAMESPACE=step) == text
    assert file.exists()


@pytest.mark.parametrize(
    "variables", [{"SLURM_LOCALID": "1"}, {"SLURM_RESTART_COUNT": "0"}, {"PMI_JOBID": "another job"}]
)
def test_other_ranks_and_jobs_that_were_not_requeued_print_nothing(
    memory: tuple[str, Path], variables: dict[str, str]
) -> None:
    step, file = memory
    assert said(step, **variables) == ""
    assert file.exists()
