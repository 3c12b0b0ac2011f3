"""What squeue and sacct tell, as they printed it (Slurm 22.05), and what is read from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.record.state import State
from hidl_cli.schedulers.slurm.jobs import Job, find, minutes, read, sacct, squeue

RECORDED = Path(__file__).parent / "recorded"


def jobs(name: str) -> dict[str, Job]:
    return {job.id: job for job in read((RECORDED / name).read_text().splitlines())}


def test_the_fields_of_a_job_are_read() -> None:
    assert jobs("squeue-22.05.txt")["16"] == Job(
        "16",
        "PENDING",
        "Resources",
        start="2026-11-21T10:58:19",
        nodes="4",
        limit="1:00:00",
        end="2026-11-21T11:58:19",
        partition="debug",
        directory="/home/u/runs/next",
    )


def test_the_directory_may_hold_the_separator() -> None:
    assert jobs("squeue-22.05.txt")["1"].directory == "/home/u/runs/a | b"


@pytest.mark.parametrize(
    ("number", "state"),
    [
        ("38", State.PENDING),  # tasks that nobody has looked at yet are one line
        ("39", State.RUNNING),  # one task runs, one has ended
        ("40", State.NODE_FAIL),  # a component lost its node, and the other was cancelled therefore
    ],
)
def test_the_parts_of_an_array_or_of_a_heterogeneous_job_are_one(number: str, state: State) -> None:
    assert jobs("squeue-22.05.txt")[number].state is state


@pytest.mark.parametrize(
    ("number", "state"), [("24", State.NODE_FAIL), ("28", State.CANCELLED), ("31", State.FAILED), ("26", State.PENDING)]
)
def test_the_accounting_is_read_by_its_states(number: str, state: State) -> None:
    assert jobs("sacct-22.05.txt")[number].state is state


@pytest.mark.parametrize("line", ["", "slurm_load_jobs error: Invalid job id specified", "CLUSTER: other", "1|RUNNING"])
def test_what_is_no_line_of_a_job_is_passed_over(line: str) -> None:
    assert read([line]) == []


def test_a_job_is_found_by_its_number_only_in_its_own_directory() -> None:
    known = jobs("squeue-22.05.txt").values()
    assert find(known, "16", "/home/u/runs/next") is not None
    assert find(known, "16", "/elsewhere") is None


def test_a_job_whose_number_was_lost_is_the_last_of_its_directory() -> None:
    known = [Job("9", "FAILED", directory="/d"), Job("10", "RUNNING", directory="/d")]
    assert find(known, None, "/d") == known[1]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("1:00", 1), ("10:00", 10), ("1:00:00", 60), ("2-00:00:00", 2880), ("0:30", 0.5), ("UNLIMITED", None), ("", None)],
)
def test_time_limits_are_read_in_minutes(limit: str, expected: float | None) -> None:
    assert minutes(limit) == expected


def test_an_end_that_is_not_told_lies_long_ago() -> None:
    assert Job("1", "FAILED", end="").ended_before(1e9, now=0)


def test_all_of_a_users_jobs_are_asked_for_in_every_state_and_partition() -> None:
    assert {"--all", "--states=all", "--user=1000", "--noheader"} <= set(squeue(1000, None))


@pytest.mark.parametrize("command", [squeue(1000, "other"), sacct("other", ids=["1"])])
def test_another_cluster_is_named(command: list[str]) -> None:
    assert "--clusters=other" in command
