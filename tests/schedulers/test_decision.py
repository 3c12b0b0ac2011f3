"""What becomes of a run, from what its job wrote and what the scheduler says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.record import State, Status
from hidl_cli.schedulers.decision import Action, Clock, Decision, Job, decide, without_answer, without_job

NOW, GRACE = 10_000.0, 15.0
NOTHING = Status(State.PENDING)
RUNNING = Status(State.RUNNING, step=1, steps=2, started=5_000.0)
COMPLETED = replace(RUNNING, state=State.COMPLETED, ended=NOW - 1, exit_status=0)
FAILED = replace(RUNNING, state=State.FAILED, ended=NOW - 1, exit_status=3)
TRAPPED = replace(RUNNING, state=State.CANCELLED, ended=NOW - 1, exit_status=143)


def job(state: State, word: str | None = None, **told: object) -> Job:
    return replace(Job("1", state, word or state.value), **told)  # type: ignore[arg-type]


def after(said: Status, of: Job, *, never: str | None = None, seconds: float = 0, unclear: float = 0) -> Decision:
    return decide(said, "Slurm", of, never, Clock(GRACE, NOW, unclear, NOW + seconds))


def shown(decision: Decision) -> tuple[Action, State]:
    return decision.action, decision.status.state


@pytest.mark.parametrize(
    "state", [State.TIMEOUT, State.CANCELLED, State.PREEMPTED, State.NODE_FAIL, State.OUT_OF_MEMORY]
)
@pytest.mark.parametrize("said", [NOTHING, RUNNING, FAILED, TRAPPED])
def test_why_a_job_was_ended_is_the_schedulers_word(said: Status, state: State) -> None:
    assert shown(after(said, job(state))) == (Action.END, state)


@pytest.mark.parametrize("said", [NOTHING, RUNNING, FAILED, TRAPPED])
def test_a_job_that_the_scheduler_failed_has_failed_with_its_reason(said: Status) -> None:
    decided = after(said, job(State.FAILED, "EXIT", reason="TERM_CWD_NOTEXIST", by_itself=False))
    assert (decided.action, decided.status.state, decided.status.reason) == (
        Action.END,
        State.FAILED,
        "TERM_CWD_NOTEXIST",
    )


def test_a_failed_job_keeps_the_exit_status_that_its_script_recorded() -> None:
    decided = after(FAILED, job(State.FAILED, reason="NonZeroExitCode"))
    assert (decided.status.state, decided.status.exit_status) == (State.FAILED, 3)


@pytest.mark.parametrize("said", [FAILED, TRAPPED])
@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
def test_without_a_reason_the_jobs_own_word_stands(said: Status, state: State) -> None:
    decided = after(said, job(state))
    assert shown(decided) == (Action.END, said.state)
    assert decided.status.reason == f"Slurm reports {state.value}"


@pytest.mark.parametrize("said", [FAILED, TRAPPED])
@pytest.mark.parametrize("word", ["RUNNING", "COMPLETING"])
def test_an_end_that_the_scheduler_has_not_noted_yet_is_waited_for(said: Status, word: str) -> None:
    of = job(State.RUNNING, word)
    assert [shown(after(said, of)), shown(after(said, of, seconds=3600))] == [(Action.SHOW, State.RUNNING)] * 2


def test_a_job_whose_record_is_late_is_waited_for() -> None:
    ended = job(State.COMPLETED, ended=NOW)
    assert [after(RUNNING, ended, seconds=seconds).action for seconds in (1, 9)] == [Action.SHOW, Action.END]


@pytest.mark.parametrize(("state", "end"), [(State.FAILED, State.FAILED), (State.COMPLETED, State.LOST)])
def test_where_no_time_of_the_end_is_reported_the_record_is_waited_for_a_while(state: State, end: State) -> None:
    of = job(state)
    waited = after(RUNNING, of, unclear=GRACE / 2)
    assert (waited.action, waited.status.state, waited.unclear) == (Action.SHOW, State.RUNNING, True)
    assert shown(after(RUNNING, of, unclear=GRACE + 1)) == (Action.END, end)


@pytest.mark.parametrize("said", [RUNNING, FAILED, TRAPPED])
def test_a_job_that_is_queued_again_is_pending_whatever_it_wrote_before(said: Status) -> None:
    assert shown(after(said, job(State.PENDING, reason="BeginTime"))) == (Action.SHOW, State.PENDING)


def test_a_job_that_began_after_the_schedulers_answer_runs() -> None:
    assert shown(after(replace(RUNNING, started=NOW + 5), job(State.PENDING))) == (Action.SHOW, State.RUNNING)


def test_a_job_that_would_never_start_is_refused() -> None:
    decided = after(NOTHING, job(State.PENDING), never="BadConstraints: no node satisfies the request")
    assert shown(decided) == (Action.REFUSE, State.REFUSED)


@pytest.mark.parametrize("said", [RUNNING, FAILED, TRAPPED])
def test_a_job_that_has_run_and_waits_again_is_never_refused(said: Status) -> None:
    waits = job(State.PENDING, reason="BadConstraints")
    assert shown(after(said, waits, never="BadConstraints: no node satisfies the request")) == (
        Action.SHOW,
        State.PENDING,
    )


def test_a_running_jobs_reason_is_shown() -> None:
    assert after(RUNNING, job(State.RUNNING, "UNKWN", reason="no contact")).status.reason == "no contact"


@pytest.mark.parametrize(
    ("said", "seconds", "expected"),
    [
        (RUNNING, 0, (Action.SHOW, State.RUNNING)),
        (RUNNING, GRACE, (Action.END, State.LOST)),
        (FAILED, GRACE, (Action.END, State.FAILED)),
        (TRAPPED, GRACE, (Action.END, State.CANCELLED)),
    ],
)
def test_a_job_that_is_unknown_is_lost_after_a_while(
    said: Status, seconds: float, expected: tuple[Action, State]
) -> None:
    assert shown(without_job(said, "Slurm has no record of job 1", Clock(GRACE, NOW, seconds, NOW))) == expected


@pytest.mark.parametrize(
    ("said", "last", "expected"),
    [
        (NOTHING, None, (Action.SHOW, State.PENDING)),
        (RUNNING, None, (Action.SHOW, State.RUNNING)),
        (NOTHING, State.RUNNING, (Action.SHOW, State.RUNNING)),
        (RUNNING, State.PENDING, (Action.SHOW, State.PENDING)),
        (replace(RUNNING, started=NOW + 1), State.PENDING, (Action.SHOW, State.RUNNING)),
        (FAILED, None, (Action.SHOW, State.RUNNING)),
        (FAILED, State.PENDING, (Action.SHOW, State.PENDING)),
        (replace(FAILED, ended=NOW - 3600), State.RUNNING, (Action.SHOW, State.RUNNING)),
        (replace(FAILED, ended=NOW - 8 * 86400), None, (Action.END, State.FAILED)),
    ],
)
def test_without_an_answer_what_was_said_last_stands(
    said: Status, last: State | None, expected: tuple[Action, State]
) -> None:
    clock = Clock(GRACE, NOW, 0.0, NOW)
    decided = without_answer(said, "Slurm", "Slurm does not answer", last and job(last), clock)
    assert shown(decided) == expected


@pytest.mark.parametrize("said", [FAILED, TRAPPED])
def test_a_job_that_runs_again_is_not_ended_by_its_first_attempt(said: Status) -> None:
    again = job(State.RUNNING, started=NOW)
    decided = after(replace(said, ended=NOW - 600), again, seconds=1)
    assert (shown(decided), decided.status.reason) == ((Action.SHOW, State.RUNNING), None)


@given(
    st.sampled_from([NOTHING, RUNNING, FAILED, TRAPPED]),
    st.builds(Job, st.just("1"), st.sampled_from(State), st.just("WORD"), reason=st.text(), by_itself=st.booleans()),
    st.floats(0, 1e7),
    st.floats(0, 1e7),
)
def test_an_end_that_is_written_down_needs_the_scheduler_no_more(
    said: Status, of: Job, seconds: float, unclear: float
) -> None:
    decided = after(said, of, seconds=seconds, unclear=unclear)
    assert decided.status.is_settled == decided.status.state.is_final
    assert (decided.action is Action.SHOW) == (not decided.status.state.is_final)


def test_what_the_job_completed_is_settled() -> None:
    assert COMPLETED.is_settled
