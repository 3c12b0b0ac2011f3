"""The check of the world's size that precedes every program, and the end of all ranks when one fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli import process
from tests.workloads import ranks

WORLD = ("-m", "hidl_workloads.world")


@pytest.fixture
def mpi(stack_prefix: Callable[[str], Path]) -> Path:
    return stack_prefix("mpi")


def test_a_world_of_the_expected_size_passes_in_silence(mpi: Path) -> None:
    command = [mpi / "bin" / "mpiexec", "-n", "2", *ranks.UNBOUND, mpi / "bin" / "python", *WORLD]
    completed = process.run(command, env=ranks.python_environment() | {"HIDL_WORLD_SIZE": "2"}, check=False)
    assert (completed.status, completed.stdout, completed.stderr) == (0, "", "")


def test_the_module_runs_in_the_same_process_with_its_arguments(mpi: Path, tmp_path: Path) -> None:
    document = tmp_path / "metrics.json"
    arguments = ["--note=a b; $(id) 'x' \"y\"\n\u00e9\u4e2d\U0001f600", "--", "", "-n"]
    completed = ranks.run(mpi, 3, *WORLD, "tells", *arguments, HIDL_METRICS=str(document))
    assert completed.status == 0, completed.stderr
    assert json.loads(document.read_text())["parameters"] == {"arguments": arguments, "same_main": True}


@pytest.mark.parametrize(("starter", "level"), [("world", "multiple"), ("single_threaded", "single")])
def test_mpi_takes_locks_only_for_a_module_that_may_have_threads(mpi: Path, starter: str, level: str) -> None:
    completed = ranks.run(mpi, 1, "-m", f"hidl_workloads.{starter}", "thread_level")
    assert (completed.status, completed.stdout) == (0, f"{level}\n"), completed.stderr


def test_singletons_end_with_86_and_the_cause_and_write_no_metrics(mpi: Path, tmp_path: Path) -> None:
    document = tmp_path / "metrics.json"
    environment = {"HIDL_WORLD_SIZE": "2", "HIDL_METRICS": str(document), "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    completed = process.run(
        [mpi / "bin" / "python", *WORLD, "tells"], env=ranks.python_environment() | environment, check=False
    )
    assert completed.status == 86
    assert "2 singletons" in completed.stderr
    assert "process-management interface" in completed.stderr
    assert "SLURM_NTASKS=2" in completed.stderr
    assert "MPICH Version" in completed.stderr
    assert str((mpi / "lib" / "libmpi.so.12").resolve()) in completed.stderr
    assert not document.exists()


def test_of_many_singletons_only_the_first_speaks(mpi: Path) -> None:
    environment = ranks.python_environment() | {"HIDL_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
    completed = process.run([mpi / "bin" / "python", *WORLD], env=environment, check=False)
    assert (completed.status, completed.stderr) == (86, "")


def test_a_rank_s_number_is_its_launcher_s_not_that_of_the_slurm_step_around_it(mpi: Path) -> None:
    names = [
        "MV2_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_RANK",
        "JSM_NAMESPACE_RANK",
        "PMIX_RANK",
        "PMI_RANK",
        "PALS_RANKID",
    ]
    program = (
        "from hidl_workloads.world import _prints_the_message\n"
        f"print([name for name in {names} if _prints_the_message(0, {{'SLURM_PROCID': '0', name: '1'}})])\n"
        f"print([name for name in {names} if not _prints_the_message(0, {{'SLURM_PROCID': '1', name: '0'}})])"
    )
    completed = process.run([mpi / "bin" / "python", "-c", program], env=ranks.python_environment(), check=False)
    assert completed.stdout == "[]\n[]\n"


def test_a_world_of_another_size_ends_with_86_and_one_message(mpi: Path, tmp_path: Path) -> None:
    document = tmp_path / "metrics.json"
    completed = ranks.run(mpi, 2, *WORLD, "tells", HIDL_WORLD_SIZE="4", HIDL_METRICS=str(document))
    assert completed.status == 86
    assert completed.stderr.count("4 ranks requested, but the MPI world has 2") == 1
    assert not document.exists()


def test_a_launcher_that_was_reported_another_number_is_not_taken_for_one_that_is_not_understood(mpi: Path) -> None:
    completed = ranks.run(mpi, 1, *WORLD, HIDL_WORLD_SIZE="2")
    assert completed.status == 86
    assert "2 ranks requested, but the MPI world has 1" in completed.stderr
    assert "singletons" not in completed.stderr


@pytest.mark.parametrize("size", ["", "two", "0", "-1"])
def test_without_an_expected_size_nothing_runs(mpi: Path, size: str) -> None:
    completed = ranks.run(mpi, 1, *WORLD, "tells", HIDL_WORLD_SIZE=size)
    assert completed.status == 2
    assert "$HIDL_WORLD_SIZE must be the requested number of ranks" in completed.stderr


@pytest.mark.parametrize(("how", "status"), [("exception", 1), ("7", 7), ("256", 1)])
def test_a_rank_that_fails_ends_all_ranks_at_once(mpi: Path, how: str, status: int) -> None:
    completed = ranks.run(mpi, 3, *WORLD, "fails", how, timeout=60)  # the others would wait for ever
    assert completed.status == status


def test_the_traceback_of_the_failed_rank_is_shown(mpi: Path) -> None:
    completed = ranks.run(mpi, 2, *WORLD, "fails", "exception", timeout=300)
    assert re.search(r'fails.py", line \d+', completed.stderr)
    assert "RuntimeError: rank 1 has had enough" in completed.stderr
    assert "rank 1 of 2 failed" in completed.stderr


@pytest.mark.deep
def test_what_a_failed_rank_says_is_not_lost_though_its_launcher_reads_late(mpi: Path) -> None:
    """Without the wait for it, one message in three is lost: Hydra drops what it has not read when a rank aborts."""
    for _ in range(8):
        completed = ranks.run(mpi, 2, *WORLD, "fails", "unheard", timeout=300)
        assert (completed.status, "rank 1 is not heard" in completed.stderr) == (1, True), completed.stderr


def test_frameworks_find_no_ranks_once_the_launcher_is_hidden(mpi: Path) -> None:
    program = """
import os
from hidl_workloads import launcher_environment, world
world.hide_launcher()
from mpi4py import MPI
print(MPI.COMM_WORLD.size, sorted(os.environ.keys() & set(launcher_environment.READ_BY_FRAMEWORKS)), flush=True)
"""
    completed = ranks.run(mpi, 2, "-c", program, RANK="0", SLURM_NTASKS="2", OMPI_COMM_WORLD_SIZE="2")
    assert completed.stdout == "2 []\n" * 2, completed.stderr
