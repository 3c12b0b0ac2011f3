"""What squeue and sacct tell, as they printed it (Slurm 22.05), and what is read from it."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.record import Run, State
from hidl_cli.schedulers.backend import JobReference
from hidl_cli.schedulers.slurm import SlurmBackend, SlurmJob, minutes, parse, sacct, squeue, state_of

RECORDED = Path(__file__).parent / "recorded"


def jobs(name: str) -> dict[str, SlurmJob]:
    return {job.id: job for job in parse((RECORDED / name).read_text().splitlines())}


def test_the_fields_of_a_job_are_read() -> None:
    assert jobs("squeue-22.05.txt")["16"] == SlurmJob(
        "16",
        State.PENDING,
        "PENDING",
        mark="/home/u/runs/next",
        reason="Resources, expected to start at 2026-11-21T10:58:19",
        ended=datetime(2026, 11, 21, 11, 58, 19).timestamp(),
        why="Resources",
        nodes="4",
        limit="1:00:00",
        partition="debug",
    )


def test_the_directory_may_hold_the_separator() -> None:
    assert jobs("squeue-22.05.txt")["1"].mark == "/home/u/runs/a | b"


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
def test_what_is_not_a_line_of_a_job_is_passed_over(line: str) -> None:
    assert parse([line]) == []


def found(mark: str, run: Path, *, id: str | None = "16", directory: str | None = None) -> bool:
    """Whether a job 16 in directory ``mark`` is the run's."""
    listed = [SlurmJob("16", State.RUNNING, "RUNNING", mark=mark)]
    return SlurmBackend().find(listed, Run(run), JobReference(id, None, 0.0, directory)) is not None


@pytest.mark.parametrize("id", ["16", None])
def test_a_job_is_the_runs_by_its_number_and_its_directory_under_any_mount(tmp_path: Path, id: str | None) -> None:
    """A copy has the same name, and exists; another number, or another run's directory, is another's job."""
    run, copy = tmp_path / "run-1", tmp_path / "copies" / "run-1"
    run.mkdir()
    copy.mkdir(parents=True)
    assert found(str(run), run, id=id)
    assert found("/export/home/u/run-1", run, id=id)
    assert not found(str(copy), run, id=id)
    assert not found("/export/home/u/run-10", run, id=id)
    assert not found(str(run), run, id="17")


def test_a_job_that_another_program_submitted_is_known_by_the_whole_path(tmp_path: Path) -> None:
    assert found("/stage/check", tmp_path, directory="/stage/check")
    assert not found("/other/check", tmp_path, directory="/stage/check")


def test_a_job_whose_number_was_lost_is_the_last_of_its_directory(tmp_path: Path) -> None:
    here = str(tmp_path)
    known = [SlurmJob("9", State.FAILED, "FAILED", mark=here), SlurmJob("10", State.RUNNING, "RUNNING", mark=here)]
    assert SlurmBackend().find(known, Run(tmp_path), JobReference(None, None, 0.0)) == known[1]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("1:00", 1), ("10:00", 10), ("1:00:00", 60), ("2-00:00:00", 2880), ("0:30", 0.5), ("UNLIMITED", None), ("", None)],
)
def test_time_limits_are_read_in_minutes(limit: str, expected: float | None) -> None:
    assert minutes(limit) == expected


def test_an_end_that_is_not_reported_lies_long_ago() -> None:
    line = "1|FAILED|NonZeroExitCode|N/A|1|1:00|N/A|debug|node1|/d"
    assert (parse([line])[0].ended, parse([line])[0].reason) == (0.0, "FAILED, NonZeroExitCode")


def test_all_of_a_users_jobs_are_asked_for_in_every_state_and_partition() -> None:
    assert {"--all", "--states=all", f"--user={os.getuid()}", "--noheader"} <= set(squeue(None))


@pytest.mark.parametrize("command", [squeue("other"), sacct("other", ids=["1"])])
def test_another_cluster_is_named(command: list[str]) -> None:
    assert "--clusters=other" in command


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("PENDING", State.PENDING),
        ("CONFIGURING", State.PENDING),
        ("REQUEUE_HOLD", State.PENDING),
        ("RUNNING", State.RUNNING),
        ("SUSPENDED", State.RUNNING),
        ("COMPLETING", State.RUNNING),
        ("COMPLETED", State.COMPLETED),
        ("FAILED", State.FAILED),
        ("CANCELLED", State.CANCELLED),
        ("CANCELLED by 1000", State.CANCELLED),
        ("CANCELLED+", State.CANCELLED),
        ("TIMEOUT", State.TIMEOUT),
        ("DEADLINE", State.TIMEOUT),
        ("NODE_FAIL", State.NODE_FAIL),
        ("BOOT_FAIL", State.NODE_FAIL),
        ("OUT_OF_MEMORY", State.OUT_OF_MEMORY),
        ("PREEMPTED", State.PREEMPTED),
    ],
)
def test_each_word_is_a_state(words: str, state: State) -> None:
    assert state_of(words) is state


@given(st.text())
def test_no_other_word_ends_a_run(words: str) -> None:
    assert state_of(f"X{words}") is State.RUNNING


@pytest.mark.parametrize(
    ("word", "reason", "shown"),
    [
        ("TIMEOUT", "TimeLimit", "TIMEOUT, time limit 1:00"),
        ("NODE_FAIL", "None", "NODE_FAIL, on node1"),
        ("COMPLETED", "None", ""),
        ("COMPLETING", "None", "COMPLETING"),
        ("REQUEUED", "BeginTime", "REQUEUED BeginTime"),
    ],
)
def test_a_reason_is_reported_with_its_detail(word: str, reason: str, shown: str) -> None:
    assert parse([f"1|{word}|{reason}|N/A|1|1:00|N/A|debug|node1|/d"])[0].reason == shown


@pytest.mark.parametrize(
    ("why", "help"),
    [
        ("JobHeldUser", "scontrol release 80520 "),
        ("JobHeldAdmin", "an administrator"),
        ("launch failed requeued held", "scontrol release 80520 "),
        ("job requeued in held state", "scontrol release 80520 "),
    ],
)
def test_a_held_job_says_what_lets_it_go_on(why: str, help: str) -> None:
    (job,) = parse([f"80520_36|PENDING|{why}|N/A|1|UNLIMITED|N/A|n2||/d"])
    assert job.reason.startswith(f"{why}: ")
    assert help in job.reason
