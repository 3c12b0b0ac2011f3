"""The order of arrays' batches: from the seed and the number of the pass, wherever one begins."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hyparflow.training.data import Arrays, Batched
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


class Shuffling:
    """Batches that begin elsewhere in each pass, as a reshuffling dataset does."""

    def __init__(self) -> None:
        self.passes = 0

    def __call__(self) -> Iterator[np.ndarray]:
        self.passes += 1
        return iter(np.arange(12).reshape(6, 2) + 100 * self.passes)


def _batched() -> Batched:
    return Batched(Shuffling(), lambda element: Samples((element,), (None,), (None,)), None)


def _first(batched: Batched, number: int, first: int = 0) -> int:
    return int(next(batched.begin(number, first)).samples.inputs[0][0])


def test_looking_at_the_size_of_a_batch_takes_nothing_from_the_first_pass() -> None:
    assert _first(_batched(), 0) == 100


def test_going_on_in_a_later_pass_begins_those_before_it() -> None:
    assert _first(_batched(), 2, first=4) == 308


def test_a_pass_that_is_asked_for_again_is_a_new_one() -> None:
    batched = _batched()

    assert [_first(batched, 0), _first(batched, 0)] == [100, 200]
