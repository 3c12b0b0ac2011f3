"""How a run fares, from the job's own word and LSF's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.lsf.bjobs import Record
from hidl_cli.schedulers.lsf.judgement import GRACE_SECONDS, Judgement, is_settled, judge

PENDING = Status(State.PENDING)
RUNNING = Status(State.RUNNING, started=1.0)
COMPLETED = Status(State.COMPLETED, exit_status=0)
FAILED = Status(State.FAILED, exit_status=1)
CANCELLED = Status(State.CANCELLED, exit_status=143)

STATS = ["PEND", "PROV", "WAIT", "PSUSP", "RUN", "USUSP", "SSUSP", "UNKWN", "ZOMBI", "DONE", "EXIT", "NEW_IN_LSF_11"]


def of(status: Status, record: Record | None, *, pending: float = 0.0, unclear: float = 0.0) -> Judgement:
    return judge(status, record, pending=pending, unclear=unclear)


def ended(reason: str = "", code: str = "1") -> Record:
    return Record("1", "EXIT", code, reason)


@given(st.sampled_from(STATS), st.text(), st.floats(0, 1e6))
def test_what_the_job_completed_stands(stat: str, reason: str, unclear: float) -> None:
    assert of(COMPLETED, Record("1", stat, "1", reason), unclear=unclear).state is State.COMPLETED


@pytest.mark.parametrize("record", [ended(), None], ids=["ended", "forgotten"])
@pytest.mark.parametrize("status", [FAILED, CANCELLED], ids=["failed", "cancelled"])
def test_where_lsf_gives_no_reason_the_jobs_own_word_stands(status: Status, record: Record | None) -> None:
    assert of(status, record).state is status.state


def test_a_job_that_called_itself_failed_may_go_on_to_be_seen_as_running_for_a_while() -> None:
    judgements = [of(FAILED, Record("1", "RUN"), unclear=seconds) for seconds in (0, GRACE_SECONDS + 1)]
    assert [judgement.state for judgement in judgements] == [State.RUNNING, State.FAILED]


@pytest.mark.parametrize("status", [RUNNING, CANCELLED, FAILED], ids=["running", "cancelled", "failed"])
@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit", State.TIMEOUT),
        ("TERM_OWNER: job killed by owner", State.CANCELLED),
        ("TERM_ADMIN: job killed by root or LSF administrator", State.CANCELLED),
        ("TERM_FORCE_OWNER: job killed by owner without time for cleanup", State.CANCELLED),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", State.OUT_OF_MEMORY),
        ("TERM_SWAP: job killed after reaching LSF swap usage limit", State.OUT_OF_MEMORY),
        ("TERM_PREEMPT: job killed after preemption", State.PREEMPTED),
        ("TERM_REQUEUE_ADMIN: job killed and requeued by root or LSF administrator", State.PREEMPTED),
        ("TERM_ZOMBIE: job exited while LSF is not available", State.NODE_FAIL),
        ("TERM_CSM_ALLOC: job killed by LSF due to CSM allocation API error", State.NODE_FAIL),
        ("TERM_CWD_NOTEXIST: current working directory is not accessible", State.FAILED),
        ("TERM_NEW_IN_LSF_11: who knows", State.FAILED),
    ],
)
def test_lsf_says_why_a_job_was_ended(status: Status, reason: str, state: State) -> None:
    assert of(status, ended(reason)) == Judgement(state, reason)


@pytest.mark.parametrize("stat", ["PEND", "PSUSP", "PROV", "WAIT"])
def test_a_job_that_was_put_back_into_the_queue_is_pending_again(stat: str) -> None:
    assert of(CANCELLED, Record("1", stat)).state is State.PENDING


@pytest.mark.parametrize("stat", ["RUN", "USUSP", "SSUSP", "UNKWN"])
def test_a_job_that_has_begun_is_running(stat: str) -> None:
    assert of(PENDING, Record("1", stat)).state is State.RUNNING


def test_a_host_that_lsf_cannot_reach_does_not_end_the_run() -> None:
    assert of(RUNNING, Record("1", "UNKWN"), unclear=1e9) == Judgement(
        State.RUNNING, "LSF has lost contact with the job's host"
    )


def test_a_job_killed_on_a_host_that_is_gone_has_lost_its_node() -> None:
    assert of(RUNNING, Record("1", "ZOMBI")).state is State.NODE_FAIL


@pytest.mark.parametrize("record", [ended(), Record("1", "DONE")])
def test_the_jobs_own_word_is_waited_for(record: Record) -> None:
    assert of(RUNNING, record, unclear=GRACE_SECONDS / 2) == Judgement(
        State.RUNNING, of(RUNNING, record).reason, unclear=True
    )


@pytest.mark.parametrize(("record", "state"), [(ended(), State.FAILED), (Record("1", "DONE"), State.LOST)])
def test_the_jobs_own_word_is_not_waited_for_for_ever(record: Record, state: State) -> None:
    assert of(RUNNING, record, unclear=GRACE_SECONDS + 1).state is state


def test_a_job_that_lsf_does_not_know_is_lost_only_after_a_while() -> None:
    assert [of(RUNNING, None, unclear=seconds).state for seconds in (0, GRACE_SECONDS + 1)] == [
        State.RUNNING,
        State.LOST,
    ]


def test_a_job_without_a_host_is_refused_only_after_a_while() -> None:
    record = Record("1", "PEND", pend_reason="There are no suitable hosts for the job")
    assert [of(PENDING, record, pending=seconds).state for seconds in (60, 3600)] == [State.PENDING, State.REFUSED]


@pytest.mark.parametrize(
    "reason", ["New job is waiting for scheduling", "Not enough job slot(s)", "The queue is inactivated by its policy"]
)
def test_a_reason_that_may_pass_is_waited_for(reason: str) -> None:
    assert of(PENDING, Record("1", "PEND", pend_reason=reason), pending=1e7) == Judgement(State.PENDING, reason)


@given(
    st.builds(Status, st.sampled_from(State), exit_status=st.sampled_from([None, 0, 1, 143])),
    st.none() | st.builds(Record, st.just("1"), st.sampled_from(STATS), st.sampled_from(["", "1"]), st.text()),
    st.floats(0, 1e7),
    st.floats(0, 1e7),
)
def test_what_is_final_and_written_down_needs_lsf_no_more(
    status: Status, record: Record | None, pending: float, unclear: float
) -> None:
    judgement = of(status, record, pending=pending, unclear=unclear)
    written = Status(judgement.state, exit_status=status.exit_status, reason=judgement.reason)
    assert is_settled(written) == judgement.state.is_final
