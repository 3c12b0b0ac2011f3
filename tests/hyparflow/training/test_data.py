"""The order of arrays' batches: from the seed and the number of the pass, wherever one begins."""

from __future__ import annotations

import numpy as np
from hyparflow.training.data import Arrays
from hyparflow.training.layout import Samples
from hypothesis import given
from hypothesis import strategies as st


def _batches(arrays: Arrays, number: int, first: int = 0) -> list[list[int]]:
    return [batch.take(batch.samples.inputs[0], slice(None)).tolist() for batch in arrays.begin(number, first)]


def _arrays(count: int, batch_size: int, *, shuffle: bool = True, seed: int = 0) -> Arrays:
    return Arrays(Samples((np.arange(count),), (None,), (None,)), batch_size, shuffle, seed)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3), st.booleans())
def test_a_pass_has_every_sample_once(count: int, batch_size: int, number: int, shuffle: bool) -> None:
    found = _batches(_arrays(count, batch_size, shuffle=shuffle), number)

    assert sorted(sample for batch in found for sample in batch) == list(range(count))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3), st.integers(0, 10))
def test_going_on_gives_what_would_have_followed(count: int, batch_size: int, number: int, first: int) -> None:
    arrays = _arrays(count, batch_size)

    assert _batches(arrays, number, first) == _batches(arrays, number)[first:]


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    orders = [_batches(_arrays(20, 20, seed=seed), number)[0] for seed in (0, 1) for number in (0, 1)]

    assert len({tuple(order) for order in orders}) == 4


def test_without_shuffling_the_order_is_that_of_the_arrays() -> None:
    assert _batches(_arrays(5, 2, shuffle=False), 3) == [[0, 1], [2, 3], [4]]
