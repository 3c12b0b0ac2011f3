"""What a bisect says."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from hidl_cli.bisect.journal import Journal, JournalEntry, Question
from hidl_cli.bisect.verdict import BisectVerdict, describe_mixture, describe_plan, expected_runs, to_json, verdict
from tests.analysis.culprit.simulated_machine import Effect, Machine, nothing, one
from tests.bisect.nights import metric, planned, side

pytestmark = pytest.mark.usefixtures("config")

NAMES = ("MPIR_CVAR_CH4_NUM_VCIS", "MPIR_CVAR_CH3_EAGER_MAX_MSG_SIZE", "MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE")
BOTH = f"the change of {NAMES[0]} from 1 to 2 and the change of {NAMES[2]} from 1 to 2"


@pytest.fixture
def question() -> Question:
    good, bad = (planned(tuning=[f"{name}={value}" for name in NAMES]) for value in (1, 2))
    return Question.between(side(good), side(bad, hidl="9.9"), metric())


def found(question: Question, effect: Effect, *, level: float = 0.0, rounds: int = 30) -> tuple[Journal, BisectVerdict]:
    """What is said after the search on a simulated machine, or so many rounds."""
    machine = Machine(effect, 3, noise=0.004, drift=0.0, level=level)
    journal = Journal(sessions=1)
    for _ in range(rounds):
        journal = journal.next_round(question, 0.95)
        entries = [
            JournalEntry(journal.round, 1, changes, "a-run", math.exp(machine.run(frozenset(changes))))
            for changes in journal.planned
        ]
        journal = replace(journal, entries=(*journal.entries, *entries))
        if journal.answer(question, 0.95).outcome != "undecided":
            break
    return journal, verdict(question, journal, 0.95)


@pytest.mark.parametrize(
    ("effect", "level", "begin"),
    [
        (one(1), 0.0, f"the change of {NAMES[1]} from 1 to 2 explains the slowdown: "),
        (
            lambda mixture: 0.05 * ({0, 2} <= mixture),
            0.0,
            f"{BOTH} explain the slowdown, but only together: ",
        ),
        (
            lambda mixture: 0.03 * (0 in mixture) + 0.03 * (2 in mixture),
            0.0,
            f"{BOTH} each explain part of the slowdown: ",
        ),
        (lambda mixture: 0.05 * ({0, 1, 2} <= mixture), 0.0, "more than two changes contribute"),
        (nothing, 0.0, "not reproducible: today, the good and the bad configuration are equally fast within noise ("),
        (nothing, 0.05, "the machine has changed: the good configuration is "),
    ],
    ids=["one", "together", "both", "several", "not reproducible", "machine"],
)
def test_the_sentence_says_what_was_found(question: Question, effect: Effect, level: float, begin: str) -> None:
    journal, said = found(question, effect, level=level)
    assert said.sentence.startswith(begin)
    document = json.loads(json.dumps(to_json(question, journal, said, 0.95)))
    assert (document["answer"], document["runs"]) == (said.sentence, journal.measured)
    assert [each["name"] for each in document["guilty"]] == [
        NAMES[number] for number in said.answer.best.explanation.changes
    ]


def test_the_recorded_slowdown_stands_beside_what_was_found(question: Question) -> None:
    recorded = metric(good=(1.0, 1.0, 1.0), bad=(1.5, 1.5, 1.5))
    _, said = found(replace(question, metric=recorded), one(1))
    assert any(note.endswith("(95 %, if this is the cause); recorded: 50.0%") for note in said.notes)


def test_what_could_not_be_tried_is_named_where_nothing_was_found(question: Question) -> None:
    _, said = found(question, nothing)
    assert any("changes that could not be tried may be the cause: hidl: " in note for note in said.notes)


def test_before_it_is_certain_the_most_probable_is_named(question: Question) -> None:
    _, said = found(question, one(1), rounds=1)
    assert (said.answer.outcome, said.sentence.startswith("undecided: the most probable cause so far is ")) == (
        "undecided",
        True,
    )


def test_mixtures_are_described_by_what_is_shorter(question: Question) -> None:
    short = [name.removeprefix("MPIR_CVAR_") for name in NAMES]
    described = [describe_mixture(question, numbers) for numbers in ((), (0, 1, 2), (1,), (0, 2))]
    assert [each.replace("MPIR_CVAR_", "") for each in described] == [
        "good",
        "bad",
        f"good with {short[1]}",
        f"bad without {short[1]}",
    ]


def test_the_plan_says_how_many_runs_to_expect(question: Question) -> None:
    assert describe_plan(question, 150)["expected_runs"] == expected_runs(question)
    noisier = replace(question, metric=metric(good=(1.0, 1.1, 0.9), bad=(1.05, 1.15, 0.95)))
    assert expected_runs(noisier) > 5 * expected_runs(question)
