from __future__ import annotations

import numpy as np

from hidl_cli.analysis.scaling import Observation, cold_rounds


def observed(*, first: float = 1.0, rounds: int = 5, seed: int = 1) -> list[Observation]:
    values = 100 * np.exp(0.01 * np.random.default_rng(seed).standard_normal((rounds, 2)))
    values[0, 1] *= first
    return [Observation(n, r, float(v)) for r, row in enumerate(values, 1) for n, v in zip((1, 2), row, strict=True)]


def test_a_first_round_that_is_much_slower_is_reported_with_its_step() -> None:
    assert list(cold_rounds(observed(first=0.6), 1)) == [
        "the first round was slower than the others (at 2), possibly due to a cold start: warm up longer"
    ]


def test_a_faster_one_is_not_cold() -> None:
    assert list(cold_rounds(observed(first=1.5), 1)) == []


def test_where_lower_is_better_a_higher_value_is_slower() -> None:
    assert list(cold_rounds(observed(first=1.5), -1))


def test_of_studies_without_a_cold_round_one_in_a_hundred_is_said_to_have_one() -> None:
    told = [any(cold_rounds(observed(seed=seed), 1)) for seed in range(600)]
    assert sum(told) / 600 <= 0.025


def test_three_rounds_are_too_few_to_report() -> None:
    assert list(cold_rounds(observed(first=0.5, rounds=3), 1)) == []
