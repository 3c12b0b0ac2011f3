from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.analysis.statistics import coefficient_of_variation, half_widths, mean_interval, repetitions_needed
from tests.analysis.simulation import NOISES, Noise, coverage, normal, percentile_coverage

spread_out = st.lists(st.floats(-10, 10), min_size=3, max_size=10).filter(lambda v: max(v) - min(v) > 1e-6)


@given(spread_out)
def test_the_interval_holds_the_average(values: list[float]) -> None:
    interval = mean_interval(values)
    assert interval is not None
    assert interval.low < sum(values) / len(values) < interval.high


@given(spread_out, st.randoms())
def test_the_order_of_the_repetitions_does_not_matter(values: list[float], random) -> None:
    shuffled = random.sample(values, len(values))
    before, after = mean_interval(values), mean_interval(shuffled)
    assert (before.low, before.high) == pytest.approx((after.low, after.high), abs=1e-9)


@given(spread_out, st.floats(-5, 5), st.floats(0.1, 10))
def test_the_interval_moves_and_stretches_with_the_values(values: list[float], shift: float, factor: float) -> None:
    plain, moved = mean_interval(values), mean_interval([factor * value + shift for value in values])
    expected = (factor * plain.low + shift, factor * plain.high + shift)
    assert (moved.low, moved.high) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_same_values_and_seed_give_the_same_interval() -> None:
    assert mean_interval([0.1, 0.3, 0.2, 0.25]) == mean_interval([0.1, 0.3, 0.2, 0.25])


def test_another_seed_changes_the_width_by_a_few_percent() -> None:
    values = [0.1, 0.3, 0.2, 0.25, 0.12]
    widths = [interval.high - interval.low for seed in range(10) if (interval := mean_interval(values, seed=seed))]
    assert max(widths) / min(widths) < 1.12


@pytest.mark.parametrize(
    "values", [[], [1.0], [1.0, 2.0], [0.7] * 5, [math.log(3.3), math.log(33) - math.log(10), math.log(3.3)]]
)
def test_too_few_values_or_none_that_differ_give_no_interval(values: list[float]) -> None:
    assert mean_interval(values) is None


@pytest.mark.parametrize("values", [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 2.0, 2.0]])
def test_equal_values_among_others_give_a_finite_interval_no_shorter_than_the_percentile_one(
    values: list[float],
) -> None:
    interval = mean_interval(values)
    assert interval is not None
    assert interval.low <= min(values)
    assert interval.high >= max(values) - 0.5
    assert math.isfinite(interval.high)


def test_many_normal_repetitions_give_the_usual_interval() -> None:
    values = np.random.default_rng(5).standard_normal(400)
    usual = 1.966 * values.std(ddof=1) / 20  # Student's t for 399 degrees of freedom
    assert half_widths(values[None, :], 0.95)[0] == pytest.approx(usual, rel=0.05)


@pytest.mark.parametrize("noise", NOISES)
def test_the_interval_of_an_efficiency_holds_the_truth_as_often_as_the_manual_says(noise: str) -> None:
    for n in (3, 5, 8, 15):
        assert coverage(NOISES[noise], n, studies=1000) >= 0.95 - 0.02


def mean_coverage(noise: Noise, n: int) -> float:
    """Return the share of 1,000 intervals of the mean that hold it; the noise's mean is 0."""
    samples = noise(np.random.default_rng(1), (1000, n))
    widths = np.concatenate([half_widths(rows, 0.95) for rows in np.array_split(samples, 10)])
    return float(np.mean(np.abs(samples.mean(axis=1)) <= widths))


def test_the_interval_of_a_mean_is_neither_too_narrow_nor_needlessly_wide() -> None:
    assert all(0.94 <= mean_coverage(normal, n) <= 0.985 for n in (3, 5, 8))


@pytest.mark.parametrize(("n", "most"), [(3, 0.80), (5, 0.88)])
def test_the_plain_percentile_bootstrap_would_not_hold(n: int, most: float) -> None:
    assert percentile_coverage(normal, n, studies=1000) <= most


@pytest.mark.parametrize("margin", [0.02, 0.03, 0.05])
def test_the_repetitions_said_to_be_needed_mostly_are_enough(margin: float) -> None:
    spread = 0.03
    n = repetitions_needed(spread, margin)
    samples = np.random.default_rng(2).normal(margin, spread, (300, n))
    widths = np.concatenate([half_widths(rows, 0.95) for rows in np.array_split(samples, 6)])
    assert np.mean(samples.mean(axis=1) - widths > 0) > 0.6


def test_a_smaller_margin_needs_more_repetitions() -> None:
    needed = [repetitions_needed(0.03, margin) for margin in (0.1, 0.05, 0.02, 0.01)]
    assert needed == sorted(needed)
    assert needed[-1] > needed[0]


def test_variation_is_the_sample_deviation_over_the_mean() -> None:
    assert coefficient_of_variation([9.0, 10.0, 11.0]) == pytest.approx(0.1)
    assert coefficient_of_variation([9.0]) is None
