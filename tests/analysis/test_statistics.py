from __future__ import annotations

import math

import numpy as np
import pytest

from hidl_cli.analysis.statistics import coefficient_of_variation, repetitions_needed
from hidl_workloads.repetitions import confidence
from tests.analysis.simulation import NOISES, coverage, half_widths, normal, percentile_coverage


@pytest.mark.parametrize("noise", NOISES)
def test_the_interval_of_an_efficiency_holds_the_truth_as_often_as_the_manual_says(noise: str) -> None:
    for n in (3, 5, 8, 15):
        stated = confidence(1, n)
        error = 3 * math.sqrt(stated * (1 - stated) / 1000)
        assert stated - error <= coverage(NOISES[noise], n, studies=1000) <= stated + 0.02 + error


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
