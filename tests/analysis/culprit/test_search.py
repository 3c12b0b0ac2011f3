"""The search on simulated machines: what is planted is found, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from hidl_cli.analysis.culprit import (
    LEAST_ROUNDS,
    CulpritAnswer,
    Expectation,
    Explanation,
    Recorded,
    RunObservation,
    answer,
    next_round,
)
from tests.analysis.culprit.simulated_machine import Effect, Machine, bisect, nothing, one, recorded_by
from tests.tiers import deep

TWELVE = 12
EVERY = frozenset(range(TWELVE))
EXPECTED = Expectation(0.05, 0.01, (1.0,) * TWELVE)


def count_right(
    tries: int, effect: Callable[[int], Effect], is_right: Callable[[int, CulpritAnswer], bool], **machine: Any
) -> int:
    """How many of the tries give the right answer; ``then`` is what mattered when the two nights were recorded."""
    then = machine.pop("then", None)
    right = 0
    for seed in range(tries):
        simulated = Machine(effect(seed), seed, **machine)
        found = bisect(simulated, recorded_by(simulated, TWELVE, then=then), TWELVE)
        right += is_right(seed, found)
    return right


@pytest.mark.parametrize(
    ("tries", "noise", "outliers", "least"),
    [(20, 0.01, 0.0, 19), deep(20, 0.02, 0.0, 19), deep(100, 0.01, 0.0, 95), deep(20, 0.01, 0.05, 19)],
)
def test_a_planted_slowdown_is_found(tries: int, noise: float, outliers: float, least: int) -> None:
    right = count_right(
        tries,
        lambda seed: one(seed % TWELVE),
        lambda seed, found: (
            found.outcome == "changes" and found.best.explanation == Explanation("one", (seed % TWELVE,))
        ),
        noise=noise,
        outliers=outliers,
    )
    assert right >= least


@pytest.mark.deep
@pytest.mark.parametrize(("tries", "noise", "least"), [(20, 0.01, 19), deep(20, 0.02, 19), deep(100, 0.01, 95)])
def test_where_nothing_is_planted_no_change_is_named(tries: int, noise: float, least: int) -> None:
    right = count_right(
        tries,
        lambda _: nothing,
        lambda _, found: found.outcome in ("not reproducible", "machine"),
        noise=noise,
        then=one(0),
    )
    assert right >= least


@pytest.mark.deep
@pytest.mark.parametrize(("level", "expected"), [(0.0, "not reproducible"), (0.05, "machine")])
def test_the_good_configuration_today_tells_the_machine_from_chance(level: float, expected: str) -> None:
    right = count_right(
        20, lambda _: nothing, lambda _, found: found.outcome == expected, drift=0.0, level=level, then=one(0)
    )
    assert right >= 19


@pytest.mark.parametrize("tries", [10, deep(60)])
def test_two_that_only_matter_together_are_named_so(tries: int) -> None:
    right = count_right(
        tries,
        lambda seed: lambda mixture: 0.05 * ({seed % 11, 11} <= mixture),
        lambda seed, found: (
            found.outcome == "changes" and found.best.explanation == Explanation("together", (seed % 11, 11))
        ),
    )
    assert right >= 0.9 * tries


def test_two_that_each_add_a_part_are_named_so() -> None:
    right = count_right(
        10,
        lambda seed: lambda mixture: 0.03 * (seed % 11 in mixture) + 0.03 * (11 in mixture),
        lambda seed, found: (
            found.outcome == "changes" and found.best.explanation == Explanation("both", (seed % 11, 11))
        ),
    )
    assert right >= 9


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("kind", "effect"),
    [
        ("opposite", lambda mixture: 1.2 ** (0 in mixture) * 0.88 ** (1 in mixture) - 1),
        ("opposite", lambda mixture: 1.4 ** (0 in mixture) * 0.88 ** (1 in mixture) - 1),
        ("either", lambda mixture: 0.05 * bool(mixture & {0, 1})),
        ("both", lambda mixture: 0.03 * (0 in mixture) + 0.03 * (1 in mixture)),
    ],
)
def test_two_are_named_by_how_they_matter(count: int, kind: str, effect: Effect) -> None:
    found = []
    for seed in range(20):
        machine = Machine(effect, seed)
        found.append(bisect(machine, recorded_by(machine, count), count))
    assert sum(each.best.explanation.kind == kind and each.outcome == "changes" for each in found) >= 18
    assert all(1 not in each.guilty for each in found if kind == "opposite")


@pytest.mark.parametrize(("level", "wrong"), [(0.0, "machine"), (0.05, "not reproducible")])
def test_noise_that_hides_the_level_of_today_leaves_it_undecided(level: float, wrong: str) -> None:
    outcomes = Counter[str]()
    for seed in range(30):
        machine = Machine(nothing, seed, noise=0.1, drift=0.0, level=level)
        outcomes[bisect(machine, recorded_by(machine, 1, then=one(0)), 1, budget=40).outcome] += 1
    assert outcomes[wrong] <= 2


def test_a_level_between_the_recorded_ones_is_neither() -> None:
    outcomes = set()
    for seed in range(10):
        machine = Machine(nothing, seed, drift=0.0, level=0.025)
        outcomes.add(bisect(machine, recorded_by(machine, 1, then=one(0)), 1, budget=40).outcome)
    assert outcomes == {"undecided"}


@pytest.mark.deep
def test_of_three_that_only_matter_together_no_one_and_no_two_are_named() -> None:
    outcomes: Counter[str] = Counter()

    def count(_: int, found: CulpritAnswer) -> bool:
        outcomes[found.outcome] += 1
        return found.outcome != "changes"

    assert count_right(20, lambda _: lambda mixture: 0.05 * ({1, 4, 7} <= mixture), count) == 20
    assert outcomes["several"] > outcomes["undecided"]


def test_the_slowdown_is_measured() -> None:
    machine = Machine(one(3), 5, noise=0.005)
    found = bisect(machine, recorded_by(machine, TWELVE), TWELVE)
    middle, low, high = found.best.slowdown
    assert low < 0.05 < high
    assert high - low < 0.02
    assert middle == pytest.approx(0.05, abs=0.01)


def test_a_drift_that_is_greater_than_the_effect_does_not_hide_it() -> None:
    """Over the search the machine becomes slower by far more than the planted 5 %."""
    machine = Machine(one(7), 11, noise=0.004, drift=0.01)
    found = bisect(machine, recorded_by(machine, TWELVE), TWELVE)
    assert (found.outcome, found.best.explanation.changes) == ("changes", (7,))


def test_the_same_runs_give_the_same_round() -> None:
    rounds = [next_round([], EXPECTED, confidence=0.95, seed=4) for _ in range(2)]
    assert rounds[0] == rounds[1]
    assert set(rounds[0]) == {frozenset(), EVERY}


def test_a_round_holds_good_bad_a_mixture_and_all_others() -> None:
    observations = [
        RunObservation(str(number), changes, 0.05 * bool(changes))
        for number in range(3)
        for changes in (frozenset(), EVERY)
    ]
    mixtures = next_round(observations, EXPECTED, confidence=0.95, seed=4)
    assert len(mixtures) == 4
    one_, other = (each for each in mixtures if each not in (frozenset(), EVERY))
    assert one_ | other == EVERY
    assert not one_ & other
    assert len(one_) == 6  # with all equally likely, a half rules out the most


def test_the_order_changes_from_round_to_round() -> None:
    orders = {tuple(map(len, next_round([], EXPECTED, confidence=0.95, seed=seed))) for seed in range(20)}
    assert orders == {(0, 12), (12, 0)}


def test_what_does_not_run_is_not_tried_again() -> None:
    observations = [
        RunObservation(str(number), changes, 0.05 * bool(changes))
        for number in range(3)
        for changes in (frozenset(), frozenset((0, 1)))
    ]
    two = Expectation(0.05, 0.01, (1.0, 1.0))
    mixtures = next_round(observations, two, confidence=0.95, seed=1)
    assert set(mixtures) == {frozenset(), frozenset((0, 1)), frozenset((0,)), frozenset((1,))}
    mixtures = next_round(observations, two, confidence=0.95, seed=1, broken=[frozenset((1,))])
    assert set(mixtures) == {frozenset(), frozenset((0, 1))}


def test_nothing_is_certain_after_too_few_rounds() -> None:
    recorded = Recorded((0.0, 0.001, -0.001), (0.05, 0.051, 0.049))
    expected = Expectation(0.05, 0.001, (1.0,))
    observations: list[RunObservation] = []
    outcomes = []
    for number in range(LEAST_ROUNDS):
        observations += [
            RunObservation(str(number), frozenset(), 0.0001 * number),
            RunObservation(str(number), frozenset((0,)), 0.05 - 0.0001 * number),
        ]
        outcomes.append(answer(observations, expected, recorded, confidence=0.95).outcome)
    assert outcomes == ["undecided"] * (LEAST_ROUNDS - 1) + ["changes"]


@pytest.mark.parametrize(("level", "expected"), [(0.0, "not reproducible"), (0.06, "machine")])
def test_without_a_change_to_try_the_configuration_is_held_against_its_record(level: float, expected: str) -> None:
    machine = Machine(nothing, 2, level=level, drift=0.0)
    found = bisect(machine, Recorded((0.0, 0.01, -0.01, 0.002), (0.05, 0.06, 0.04, 0.055)), 0)
    assert found.outcome == expected
    assert machine.runs < 10
