"""Sums that no order changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays
from hypothesis.strategies import floats, integers

from hidl_workloads.ml.exact import Grid

LARGEST = 1e140  # sums of squares of larger numbers overflow
VALUES = arrays(np.float64, integers(1, 60), elements=floats(-LARGEST, LARGEST, exclude_min=True, exclude_max=True))


def summed(values: np.ndarray, largest: float, count: int) -> float:
    high, low = Grid(largest, count).split(values)
    return float(high.sum() + low.sum())


@given(VALUES, integers(0, 2**32))
def test_no_order_and_no_grouping_changes_a_sum(values: np.ndarray, seed: int) -> None:
    largest, random = float(np.abs(values).max()), np.random.default_rng(seed)
    high, low = Grid(largest, len(values)).split(values)
    order, cut = random.permutation(len(values)), int(random.integers(len(values) + 1))
    for part in (high, low):
        mixed = part[order]
        assert mixed[:cut].sum() + mixed[cut:].sum() == math.fsum(part)


@given(VALUES)
def test_a_sum_is_as_good_as_an_exact_one(values: np.ndarray) -> None:
    largest = float(np.abs(values).max())
    lost = len(values) * largest * 2.0**-88  # 102 - 2 * 7 bits: 60 values fit into 2**7
    rounding = abs(math.fsum(values)) * 2**-52
    assert abs(summed(values, largest, len(values)) - math.fsum(values)) <= lost + rounding


def test_a_plain_sum_does_depend_on_the_order() -> None:
    values = np.array([1e16, 1.0, -1e16, 1.0])
    assert values.sum() != values[[0, 2, 1, 3]].sum()
    assert summed(values, 1e16, 4) == summed(values[[0, 2, 1, 3]], 1e16, 4) == 2.0


@pytest.mark.parametrize("value", [0.0, 5e-324, 1e-300, -9e139])
def test_the_smallest_and_the_largest_numbers_have_a_grid_too(value: float) -> None:
    assert summed(np.full(3, value), abs(value), 3) == 3 * value
