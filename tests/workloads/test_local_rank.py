"""The starter of commands that choose their GPU by the local rank, whatever starts them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.workloads.ranks import python_environment

PREFIX = [sys.executable, "-m", "hidl_workloads.local_rank"]
SHOW = ["sh", "-c", 'echo "${MPI_LOCALRANKID-none} $#:$1"', "sh", "a b"]


@pytest.mark.parametrize(
    ("told", "local_rank"),
    [
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, "0"),
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "MPI_LOCALRANKID": "1"}, "1"),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "2"),
        ({"PALS_LOCAL_RANKID": "3"}, "3"),
        ({}, "none"),
    ],
)
def test_the_command_finds_its_local_rank(told: dict[str, str], local_rank: str) -> None:
    done = subprocess.run([*PREFIX, *SHOW], env=python_environment() | told, capture_output=True, text=True, check=True)
    assert done.stdout == f"{local_rank} 1:a b\n"


def test_a_command_that_is_not_there_is_named_and_the_status_is_the_shells() -> None:
    done = subprocess.run(
        [*PREFIX, "osu_latncy"], env=python_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "hidl: osu_latncy: No such file or directory on " in done.stderr
