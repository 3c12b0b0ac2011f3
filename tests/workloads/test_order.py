"""The order of the data: each batch exactly once in an epoch, whatever happens to the training."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.training.order import Order

EPOCHS = 3


@given(
    batches=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    jobs=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), max_size=8),
)
def test_each_batch_is_taken_once_in_an_epoch_by_any_jobs(batches: int, seed: int, jobs: list[tuple[int, int]]) -> None:
    """Each job has ranks and steps of its own, and begins at the position that the one before has saved."""
    position, taken = 0, []
    for number, steps in [*jobs, (1, EPOCHS * batches)]:
        orders = [Order(batches, seed, position) for _ in range(number)]
        for _ in range(steps):
            taken += [order.take(rank, number) for rank, order in enumerate(orders)]
        position = orders[0].position
    uninterrupted = Order(batches, seed)
    assert taken == [uninterrupted.take(0, 1) for _ in taken]
    for epoch in range(EPOCHS):
        of_epoch = taken[epoch * batches : (epoch + 1) * batches]
        assert Counter(of_epoch) == dict.fromkeys(range(batches), 1)


@given(
    size=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    jobs=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(0, 12)), max_size=8),
)
def test_each_sample_is_taken_once_in_an_epoch_by_any_jobs(
    size: int, seed: int, jobs: list[tuple[int, int, int]]
) -> None:
    """Each job has ranks, a batch and steps of its own, and begins at the position that the one before has saved."""
    position, taken = 0, []
    for number, batch, steps in [*jobs, (1, 1, EPOCHS * size)]:
        orders = [Order(size, seed, position) for _ in range(number)]
        for _ in range(steps):
            for rank, order in enumerate(orders):
                taken += order.take_samples(rank, number, batch)
        position = orders[0].position
    for epoch in range(EPOCHS):
        of_epoch = taken[epoch * size : (epoch + 1) * size]
        assert Counter(of_epoch) == {(epoch, number): 1 for number in range(size)}


def test_orders_are_random() -> None:
    """Each number is at each place equally often, and behind its predecessor as often as by chance."""
    size, epochs = 30, 3000
    order = Order(size, 5)
    counts, following = np.zeros((size, size)), 0
    for _ in range(epochs):
        numbers = [number for _, number in order.take_samples(0, 1, size)]
        counts[np.arange(size), numbers] += 1
        following += sum(second == first + 1 for first, second in pairwise(numbers))
    chi_squared = float(((counts - epochs / size) ** 2 / (epochs / size)).sum())
    freedom = (size - 1) ** 2
    assert abs(chi_squared - freedom) < 4 * (2 * freedom) ** 0.5
    assert following / epochs == pytest.approx((size - 1) / size, abs=4 * epochs**-0.5)


def test_the_order_of_a_large_data_set_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        taken = Order(10**12, 3, position=5 * 10**12 - 3).take_samples(0, 1, 8)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
    assert [epoch for epoch, _ in taken] == [4, 4, 4, 5, 5, 5, 5, 5]
    assert len({number for _, number in taken}) == 8
    assert all(0 <= number < 10**12 for _, number in taken)


def test_epochs_have_orders_of_their_own() -> None:
    order = Order(30, 0)
    first, second = ([order.take(0, 1) for _ in range(30)] for _ in range(2))
    assert first != second
