"""How a run fares, from what its job wrote and what Slurm says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import pytest

from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.slurm.fate import GRACE_SECONDS, Verb, fate, unanswered, without_job
from hidl_cli.schedulers.slurm.jobs import Job

NOW = 10_000.0
NOTHING = Status(State.PENDING)
RUNNING = Status(State.RUNNING, step=1, steps=2, started=5_000.0)
FAILED = replace(RUNNING, state=State.FAILED, ended=NOW - 1, exit_status=3)
TRAPPED = replace(RUNNING, state=State.CANCELLED, ended=NOW - 1, exit_status=143)


def no_partition(_: str) -> Mapping[str, str]:
    return {}


def after(said: Status, word: str, reason: str = "", *, seconds: float = 0) -> tuple[Verb, State]:
    decided = fate(said, Job("1", word, reason), no_partition, asked=NOW, now=NOW + seconds)
    return decided.verb, decided.status.state


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("TIMEOUT", State.TIMEOUT),
        ("CANCELLED", State.CANCELLED),
        ("PREEMPTED", State.PREEMPTED),
        ("NODE_FAIL", State.NODE_FAIL),
        ("OUT_OF_MEMORY", State.OUT_OF_MEMORY),
    ],
)
@pytest.mark.parametrize("said", [NOTHING, RUNNING, FAILED, TRAPPED])
def test_why_a_job_was_ended_is_slurms_to_say(said: Status, word: str, state: State) -> None:
    assert after(said, word) == (Verb.END, state)


def test_a_failed_job_keeps_the_status_that_its_script_recorded() -> None:
    decided = fate(FAILED, Job("1", "FAILED", "NonZeroExitCode"), no_partition, now=NOW)
    assert (decided.status.state, decided.status.exit_status) == (State.FAILED, 3)


def test_a_script_that_was_ended_by_another_hand_than_slurms_was_cancelled() -> None:
    assert after(TRAPPED, "FAILED") == (Verb.END, State.CANCELLED)


def test_a_job_that_failed_before_it_wrote_a_word_failed() -> None:
    assert after(NOTHING, "FAILED") == (Verb.END, State.FAILED)


@pytest.mark.parametrize("said", [FAILED, TRAPPED])
@pytest.mark.parametrize("word", ["RUNNING", "COMPLETING"])
def test_an_end_that_slurm_has_not_noted_yet_is_waited_for_a_while(said: Status, word: str) -> None:
    assert [after(said, word), after(said, word, seconds=GRACE_SECONDS)] == [
        (Verb.SHOW, State.RUNNING),
        (Verb.END, said.state),
    ]


def test_a_script_that_is_quicker_than_its_file_system_is_waited_for() -> None:
    ended = Job("1", "COMPLETED", end="2026-01-01T00:00:00")
    at = datetime(2026, 1, 1).timestamp()
    assert [fate(RUNNING, ended, no_partition, now=at + seconds).verb for seconds in (1, 9)] == [Verb.SHOW, Verb.END]


@pytest.mark.parametrize("said", [RUNNING, FAILED, TRAPPED])
def test_a_job_that_is_queued_again_waits_whatever_it_wrote_before(said: Status) -> None:
    assert after(said, "PENDING", "BeginTime") == (Verb.SHOW, State.PENDING)


def test_a_job_that_began_after_slurms_answer_runs() -> None:
    assert after(replace(RUNNING, started=NOW + 5), "PENDING") == (Verb.SHOW, State.RUNNING)


def test_a_job_that_would_never_start_is_refused() -> None:
    assert after(NOTHING, "PENDING", "BadConstraints") == (Verb.REFUSE, State.REFUSED)


def test_a_waiting_job_is_told_with_its_reason_and_its_start() -> None:
    job = Job("1", "PENDING", "Resources", start="2026-11-21T10:58:19")
    assert fate(NOTHING, job, no_partition).status.reason == "Resources, expected to start at 2026-11-21T10:58:19"


@pytest.mark.parametrize(
    ("said", "seconds", "expected"),
    [
        (RUNNING, 0, (Verb.SHOW, State.RUNNING)),
        (RUNNING, GRACE_SECONDS, (Verb.END, State.LOST)),
        (FAILED, GRACE_SECONDS, (Verb.END, State.FAILED)),
        (TRAPPED, GRACE_SECONDS, (Verb.END, State.CANCELLED)),
    ],
)
def test_a_job_that_nobody_knows_is_lost_after_a_while(
    said: Status, seconds: float, expected: tuple[Verb, State]
) -> None:
    decided = without_job(said, seconds, "Slurm does not know job 1")
    assert (decided.verb, decided.status.state) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (NOTHING, (Verb.SHOW, State.PENDING)),
        (RUNNING, (Verb.SHOW, State.RUNNING)),
        (FAILED, (Verb.SHOW, State.RUNNING)),
        (replace(FAILED, ended=NOW - 60), (Verb.END, State.FAILED)),
    ],
)
def test_while_slurm_is_away_a_run_goes_on_until_its_job_says_otherwise(
    said: Status, expected: tuple[Verb, State]
) -> None:
    decided = unanswered(said, "Slurm does not answer", now=NOW)
    assert (decided.verb, decided.status.state) == expected
