"""The order of the data: each batch exactly once in an epoch, whatever happens to the training."""

from __future__ import annotations

from collections import Counter

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


def test_epochs_have_orders_of_their_own() -> None:
    order = Order(30, 0)
    first, second = ([order.take(0, 1) for _ in range(30)] for _ in range(2))
    assert first != second
