"""What every run looks at before its program starts, on real ranks and on the real fault."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli import process
from hidl_cli.process import Completed
from hidl_workloads.doctor import record
from hidl_workloads.doctor.finding import Finding
from tests.waiting import patience
from tests.workloads import ranks

WORLD = ("-m", "hidl_workloads.world")


@pytest.fixture
def mpi(stack_prefix: Callable[[str], Path]) -> Path:
    return stack_prefix("mpi")


@pytest.fixture
def findings(tmp_path: Path) -> Path:
    return tmp_path / "findings.json"


def rules(file: Path) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity) for finding in record.read(file)]


def wrapped(around: list[str], mpi: Path, count: int, **variables: str) -> Completed:
    """Ranks, each or all started by another command before Python."""
    environment = ranks.python_environment() | {"HIDL_WORLD_SIZE": str(count)} | variables
    command = [mpi / "bin" / "mpiexec", "-n", str(count), *around, mpi / "bin" / "python", *WORLD]
    return process.run(command, env=environment, timeout=patience(120), check=False)


def test_a_healthy_world_writes_no_file(mpi: Path, findings: Path) -> None:
    completed = wrapped([*ranks.UNBOUND], mpi, 2, HIDL_FINDINGS=str(findings))
    assert (completed.stderr, findings.exists()) == ("", False)


def test_ranks_bound_to_the_same_core_are_reported_in_one_line_and_run_on(mpi: Path, findings: Path) -> None:
    told = {"HIDL_FINDINGS": str(findings), "HIDL_CORES_PER_RANK": "1"}
    completed = wrapped(["taskset", "-c", "0"], mpi, 2, **told)
    assert (completed.status, completed.stderr.count("\n"), "HD047" in completed.stderr) == (0, 1, True)
    assert ("HD047", "warning") in rules(findings)


def test_what_was_reported_is_not_reported_again(mpi: Path, findings: Path) -> None:
    told = {"HIDL_FINDINGS": str(findings), "HIDL_CORES_PER_RANK": "1"}
    wrapped(["taskset", "-c", "0"], mpi, 2, **told)
    assert wrapped(["taskset", "-c", "0"], mpi, 2, **told).stderr == ""


def test_what_is_good_to_know_goes_into_the_file_alone(mpi: Path, findings: Path) -> None:
    completed = wrapped(["sh", "-c", 'ulimit -l 64; exec "$@"', "sh"], mpi, 1, HIDL_FINDINGS=str(findings))
    assert (completed.stderr, rules(findings)) == ("", [("HD043", "info")])


def test_another_mpi_in_the_place_of_the_stacks_own_is_found_with_the_singletons_that_come_of_it(
    mpi: Path, stack_prefix: Callable[[str], Path], findings: Path
) -> None:
    other = stack_prefix("openmpi") / "lib" / "libmpi.so.40"
    completed = wrapped(["env", f"LD_PRELOAD={other}"], mpi, 2, HIDL_FINDINGS=str(findings))
    assert (completed.status, rules(findings)) == (86, [("HD001", "error"), ("HD003", "error")])
    assert str(other.resolve()) in record.read(findings)[1].seen


@pytest.mark.skipif(os.geteuid() != 0, reason="MOUNTS NEED ROOT")
def test_a_full_dev_shm_is_reported_before_mpi_dies_of_it(mpi: Path, findings: Path) -> None:
    stage = "mount -t tmpfs -o size=1m t /dev/shm && head -c 1048576 /dev/zero > /dev/shm/full"
    environment = ranks.python_environment() | {"HIDL_WORLD_SIZE": "2", "HIDL_FINDINGS": str(findings)}
    launch = [str(mpi / "bin" / "mpiexec"), "-n", "2", str(mpi / "bin" / "python"), *WORLD]
    command = ["unshare", "-m", "sh", "-c", f'{stage}; exec "$@"', "sh", *launch]
    completed = process.run(command, env=environment, timeout=patience(120), check=False)
    assert completed.status != 0
    assert "hidl: error HD041" in completed.stderr
    assert ("HD041", "error") in rules(findings)


def test_a_file_that_cannot_be_written_stops_nothing(mpi: Path) -> None:
    completed = wrapped(["taskset", "-c", "0"], mpi, 2, HIDL_FINDINGS="/proc/none", HIDL_CORES_PER_RANK="1")
    assert (completed.status, "HD047" in completed.stderr) == (0, True)


def test_a_finding_in_one_line_says_where_and_what_fixes_it() -> None:
    from hidl_workloads.doctor.preflight import line

    finding = Finding("HD041", "error", "It is full", "0 KiB are free", "why", "make room", "n1")
    assert line(finding) == "error HD041 (n1): It is full: 0 KiB are free; fix: make room"
