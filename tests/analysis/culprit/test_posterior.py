"""The probabilities of explanations, against cases that can be computed or seen by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hidl_cli.analysis.culprit import (
    PRIORS,
    Belief,
    Expectation,
    Explanation,
    Kind,
    RunObservation,
    beliefs,
    explanations,
)

THREE = Expectation(0.05, 0.01, (1.0, 1.0, 1.0))


def observed(round_: int, **values: float) -> list[RunObservation]:
    """One round: ``ac=0.05`` is a run with the changes 0 and 2; ``good`` without any."""
    return [
        RunObservation(f"{round_}", frozenset("abc".index(each) for each in name.replace("good", "")), value)
        for name, value in values.items()
    ]


def test_every_explanation_is_there_once() -> None:
    kinds = [each.kind for each in explanations(12)]
    assert [kinds.count(kind) for kind in PRIORS] == [1, 12, 66, 66, 66, 132, 1]
    assert [each.kind for each in explanations(1)] == ["none", "one"]
    assert [each.kind for each in explanations(0)] == ["none"]


def test_probabilities_are_those_of_all_explanations() -> None:
    found = beliefs(observed(1, good=0.0, abc=0.05, a=0.05, bc=0.001), THREE)
    assert sum(each.probability for each in found) == pytest.approx(1)
    assert [each.probability for each in found] == sorted((each.probability for each in found), reverse=True)


def test_before_any_run_the_weights_decide() -> None:
    found = beliefs([], Expectation(0.05, 0.01, (1.0, 4.0, 1.0)))
    of = {each.explanation: each.probability for each in found}
    assert of[Explanation("none")] == pytest.approx(0.3)
    assert of[Explanation("one", (1,))] == pytest.approx(4 * of[Explanation("one", (0,))])


def test_the_level_of_a_round_does_not_matter() -> None:
    rounds = [observed(number, good=0.0, abc=0.05, b=0.048, ac=0.002) for number in range(3)]
    moved = [
        RunObservation(each.round, each.changes, each.value + 10 * number)
        for number, its in enumerate(rounds)
        for each in its
    ]
    before = beliefs([each for its in rounds for each in its], THREE)
    after = beliefs(moved, THREE)
    assert [each.explanation for each in before] == [each.explanation for each in after]
    assert [each.probability for each in before] == pytest.approx([each.probability for each in after])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"a": 0.05, "bc": 0.0, "b": 0.0, "ac": 0.05, "c": 0.0, "ab": 0.05}, Explanation("one", (0,))),
        ({"a": 0.0, "bc": 0.0, "b": 0.0, "ac": 0.0, "c": 0.0, "ab": 0.05}, Explanation("together", (0, 1))),
        ({"a": 0.025, "bc": 0.025, "b": 0.025, "ac": 0.025, "c": 0.0, "ab": 0.05}, Explanation("both", (0, 1))),
        ({"a": 0.0, "bc": 0.0, "b": 0.0, "ac": 0.0, "c": 0.0, "ab": 0.0}, Explanation("several")),
        ({"a": 0.05, "bc": 0.05, "b": 0.05, "ac": 0.05, "c": 0.0, "ab": 0.05}, Explanation("either", (0, 1))),
        ({"a": 0.18, "bc": -0.13, "b": -0.13, "ac": 0.18, "c": 0.0, "ab": 0.05}, Explanation("opposite", (0, 1))),
    ],
    ids=["one", "together", "both", "all three", "either", "opposite"],
)
def test_what_the_mixtures_show_is_the_most_probable(values: dict[str, float], expected: Explanation) -> None:
    noise = iter(np.random.default_rng(1).normal(0, 0.002, 60))
    observations = [
        each
        for number in range(3)
        for each in observed(number, **{k: v + next(noise) for k, v in ({"good": 0.0, "abc": 0.05} | values).items()})
    ]
    best = beliefs(observations, THREE)[0]
    assert (best.explanation, best.probability > 0.9) == (expected, True)


def test_equal_configurations_have_no_difference() -> None:
    noise = np.random.default_rng(2).normal(0, 0.005, 40)
    observations = [
        RunObservation(str(number), changes, float(noise[2 * number + place]))
        for number in range(20)
        for place, changes in enumerate((frozenset[int](), frozenset((0, 1, 2))))
    ]
    best = beliefs(observations, THREE)[0]
    assert best.explanation.kind == "none"
    assert best.probability > 0.95


def test_the_effect_is_that_of_least_squares_once_the_runs_outweigh_the_prior() -> None:
    random = np.random.default_rng(3)
    observations, differences = [], []
    for number in range(200):
        good, bad = random.normal(0, 0.01), 0.08 + random.normal(0, 0.01)
        differences.append(bad - good)
        observations += [
            RunObservation(f"{number}", frozenset(), good),
            RunObservation(f"{number}", frozenset((0,)), bad),
        ]
    best = beliefs(observations, Expectation(0.05, None, (1.0,)))[0]
    assert best.explanation == Explanation("one", (0,))
    assert best.effect == pytest.approx(float(np.mean(differences)), abs=2e-4)
    assert best.error == pytest.approx(0.01 * math.sqrt(2 / 200), rel=0.15)
    middle, low, high = best.slowdown
    assert low < math.expm1(0.08) < high
    assert middle == pytest.approx(math.expm1(best.effect))


def test_the_marginal_likelihood_is_that_of_a_normal_vector() -> None:
    """Of two explanations with a known noise, the odds are those of the densities of the contrasts of the rounds."""
    expected = Expectation(0.05, 0.01, (1.0,))
    values = [(0.0, 0.03), (0.01, 0.05), (-0.01, 0.02)]
    observations = [
        RunObservation(str(number), changes, pair[place])
        for number, pair in enumerate(values)
        for place, changes in enumerate((frozenset[int](), frozenset((0,))))
    ]
    contrasts = np.array([bad - good for good, bad in values])
    places = np.linspace(-3.5, 3.5, 41)
    total = np.zeros(2)
    for noise, weight in zip(0.01 * np.exp(0.7 * places), np.exp(-(places**2) / 2), strict=True):
        for number, (mean, spread) in enumerate(((0.0, 0.0), (0.05, 0.02))):
            covariance = 2 * noise**2 * np.eye(3) + spread**2
            rest = contrasts - mean
            density = math.exp(-rest @ np.linalg.solve(covariance, rest) / 2) / math.sqrt(np.linalg.det(covariance))
            total[number] += weight * density
    prior = np.array([0.3, 0.55])
    odds = total * prior / (total * prior).sum()
    of = {each.explanation.kind: each.probability for each in beliefs(observations, expected)}
    assert [of["none"], of["one"]] == pytest.approx(list(odds), rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "effects", "certainty"),
    [
        ("both", ((0.1, 0.01), (0.1, 0.01)), 0.99),
        ("both", ((0.2, 0.01), (-0.1, 0.01)), 0.0),
        ("both", ((0.1, 0.01), (0.0, 0.01)), 0.495),
        ("opposite", ((0.2, 0.01), (-0.1, 0.01)), 0.99),
        ("opposite", ((0.2, 0.01), (0.1, 0.01)), 0.0),
    ],
)
def test_an_explanation_is_as_certain_as_the_signs_of_its_effects(
    kind: Kind, effects: tuple[tuple[float, float], ...], certainty: float
) -> None:
    belief = Belief(Explanation(kind, (0, 1)), 0.99, 0.1, 0.01, effects)
    assert belief.certainty == pytest.approx(certainty, abs=1e-9)
