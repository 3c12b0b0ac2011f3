"""A bisect goes on after every interruption, and loses nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.bisect.journal import Bisect, Journal, JournalEntry, Question, find_bisect, open_bisect
from hidl_cli.bisect.search import search
from hidl_cli.bisect.verdict import verdict
from hidl_cli.errors import HidlError, JobFailed
from tests.analysis.culprit.simulated_machine import Effect, Machine, nothing, one
from tests.bisect.nights import metric, planned, side

pytestmark = pytest.mark.usefixtures("config")

NAMES = ("MPIR_CVAR_CH4_NUM_VCIS", "MPIR_CVAR_CH3_EAGER_MAX_MSG_SIZE", "MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE")


class Killed(BaseException):
    """The job is gone, as after SIGKILL."""


class Simulated:
    """Measures mixtures on a simulated machine, in seconds; dies in the place of the runs with these numbers."""

    def __init__(self, effect: Effect, *, dies_at: frozenset[int] = frozenset(), seed: int = 1) -> None:
        self.machine = Machine(effect, seed, noise=0.005)
        self.ids: list[str] = []
        self._dies_at = dies_at
        self._asked = 0

    def __call__(self, question: Question, changes: tuple[int, ...], run: str) -> float:
        self._asked += 1
        if self._asked - 1 in self._dies_at:
            raise Killed
        self.ids.append(run)
        return float(2.718281828 ** self.machine.run(frozenset(changes)))


@pytest.fixture
def question() -> Question:
    good = planned(tuning=[f"{name}=1" for name in NAMES])
    bad = planned(tuning=[f"{name}=2" for name in NAMES], command=["python", "train.py", "--batch", "16"])
    made = Question.between(side(good), side(bad), metric())
    assert [change.name for change in made.changes.tried] == [*NAMES, "word 4"]
    return made


def finish(bisect: Bisect, measure: Callable[[Question, tuple[int, ...], str], float], budget: int = 100) -> int:
    """Call it again each time that it dies; return how many times it was called."""
    for times in range(1, 100):
        try:
            search(bisect, 0.95, budget, measure)
        except Killed:
            continue
        return times
    raise AssertionError("never ends")


def test_the_guilty_change_is_named(question: Question) -> None:
    found = open_bisect(question)
    finish(found, Simulated(one(1)))
    said = verdict(question, found.journal(), 0.95)
    assert said.answer.outcome == "changes"
    assert said.sentence.startswith(f"the change of {NAMES[1]} from 1 to 2 explains the slowdown: ")
    assert "% slower (" in said.sentence


@pytest.mark.parametrize("at", range(16))
def test_it_goes_on_from_every_point(question: Question, at: int) -> None:
    found = open_bisect(question)
    simulated = Simulated(one(1), dies_at=frozenset({at}))
    with pytest.raises(Killed):
        search(found, 0.95, 100, simulated)
    before = found.journal()
    assert [entry.run for entry in before.entries] == simulated.ids  # each run that ended is kept
    again = open_bisect(question)
    assert again == found
    finish(again, simulated)
    after = again.journal()
    assert after.entries[: len(before.entries)] == before.entries
    assert [entry.run for entry in after.entries] == simulated.ids
    assert verdict(question, after, 0.95).answer.best.explanation.changes == (1,)


def test_what_is_left_of_a_round_runs_and_is_held_against_its_own_job(question: Question) -> None:
    found = open_bisect(question)
    with pytest.raises(Killed):
        search(found, 0.95, 100, Simulated(one(1), dies_at=frozenset({3})))
    (interrupted,) = found.journal().left
    finish(found, Simulated(one(1)))
    first = [entry for entry in found.journal().entries if entry.round == 1]
    assert first[1].changes == interrupted
    assert [entry.session for entry in first] == [1, 2]
    assert len({each.round for each in found.journal().observations(question.metric)[:2]}) == 2


def test_each_job_begins_with_runs_that_do_not_count(question: Question) -> None:
    found = open_bisect(question)
    finish(found, Simulated(one(1), dies_at=frozenset({7})))
    warm = [(entry.session, len(entry.changes)) for entry in found.journal().entries if entry.round == 0]
    assert warm == [(1, 0), (1, 4), (2, 0), (2, 4)]


@pytest.mark.parametrize("budget", [1, 5, 10])
def test_no_more_runs_than_the_budget(question: Question, budget: int) -> None:
    found = open_bisect(question)
    finish(found, Simulated(one(1)), budget)
    journal = found.journal()
    assert journal.measured == budget
    said = verdict(question, journal, 0.95)
    assert (said.answer.outcome, said.sentence.startswith("undecided: the most probable cause so far is")) == (
        "undecided",
        True,
    )
    finish(found, Simulated(one(1)), 100)
    assert verdict(question, found.journal(), 0.95).answer.outcome == "changes"


def test_once_answered_nothing_runs(question: Question) -> None:
    found = open_bisect(question)
    finish(found, Simulated(nothing))
    before = found.journal()
    assert verdict(question, before, 0.95).sentence.startswith(
        "not reproducible: today, the good and the bad configuration are equally fast"
    )
    search(found, 0.95, 1000, Simulated(nothing, dies_at=frozenset({0})))
    assert found.journal() == before


def test_a_mixture_that_fails_is_not_needed(question: Question) -> None:
    simulated = Simulated(one(1))

    def fails(asked: Question, changes: tuple[int, ...], run: str) -> float:
        if 0 in changes and len(changes) == 2:
            raise HidlError("these two do not go together")
        return simulated(asked, changes, run)

    found = open_bisect(question)
    finish(found, fails)
    said = verdict(question, found.journal(), 0.95)
    assert said.answer.best.explanation.changes == (1,)
    broken = [frozenset(entry.changes) for entry in found.journal().entries if entry.failure]
    assert len(broken) == len({*broken})


@pytest.mark.parametrize(("count", "which"), [(0, "good"), (4, "bad")])
def test_without_good_or_bad_it_ends(question: Question, count: int, which: str) -> None:
    def fails(_: Question, changes: tuple[int, ...], run: str) -> float:
        if len(changes) == count:
            raise HidlError("out of memory")
        return 1.0

    with pytest.raises(JobFailed, match=f"the {which} configuration cannot run: out of memory"):
        search(open_bisect(question), 0.95, 100, fails)


def test_the_same_two_runs_are_the_same_bisect(question: Question) -> None:
    assert find_bisect(question) is None
    found = open_bisect(question)
    assert find_bisect(question) == found
    assert found.question() == question
    assert found.journal() == Journal()
    other = Question.between(question.good, question.bad, metric(bad=(1.1, 1.2, 1.3)))
    assert find_bisect(other) == found  # of the same runs by the same metric
    assert find_bisect(Question.between(question.bad, question.good, metric())) is None


def test_a_damaged_journal_is_an_error_with_a_way_out(question: Question) -> None:
    found = open_bisect(question)
    Path(found.directory, "journal.json").write_text('{"schema": "hidl.bisect-journal/1", "entries": 3}')
    with pytest.raises(HidlError, match=r"cannot read .*journal\.json") as caught:
        found.journal()
    assert "--fresh" in str(caught.value.hint)


ENTRIES = st.builds(
    JournalEntry,
    round=st.integers(0, 50),
    session=st.integers(1, 9),
    changes=st.lists(st.integers(0, 20), max_size=5).map(tuple),
    run=st.from_regex(r"[a-z0-9-]{1,30}", fullmatch=True),
    value=st.none() | st.floats(),
    failure=st.none() | st.text(max_size=40),
)


@given(
    journal=st.builds(
        Journal,
        entries=st.lists(ENTRIES, max_size=6).map(tuple),
        planned=st.lists(st.lists(st.integers(0, 20), max_size=5).map(tuple), max_size=4).map(tuple),
        round=st.integers(0, 50),
        sessions=st.integers(0, 9),
    )
)
def test_a_journal_is_read_as_it_was_written(journal: Journal) -> None:
    """A program's words and numbers are in it, such as ``nan`` and text with any characters."""
    with tempfile.TemporaryDirectory() as directory:
        found = Bisect(Path(directory))
        found.write(journal)
        assert repr(found.journal()) == repr(journal)  # a nan differs from itself
