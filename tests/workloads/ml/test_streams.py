"""Random data that do not depend on who makes them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis.strategies import integers

from hidl_workloads.ml.streams import Stream, blobs, normal

FEW = settings(max_examples=25, deadline=None)


def points(rows: range, stream: Stream = Stream.POINTS, seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    return blobs(seed, stream, rows, columns=3, centers=4, spread=0.5)


@FEW
@given(integers(0, 3000), integers(0, 3000))
def test_any_rows_of_blobs_are_those_of_the_whole(start: int, length: int) -> None:
    whole, of_whole = points(range(6000))
    part, of_part = points(range(start, start + length))
    assert (part == whole[start : start + length]).all()
    assert (of_part == of_whole[start : start + length]).all()


@FEW
@given(integers(0, 400), integers(0, 400), integers(0, 400), integers(0, 400))
def test_any_rectangle_of_a_matrix_is_that_of_the_whole(top: int, height: int, left: int, width: int) -> None:
    whole = normal(3, Stream.LEFT, range(800), range(800))
    part = normal(3, Stream.LEFT, range(top, top + height), range(left, left + width))
    assert (part == whole[top : top + height, left : left + width]).all()


def test_seeds_and_streams_are_independent() -> None:
    made = [points(range(50), stream, seed)[0] for stream in (Stream.POINTS, Stream.QUERIES) for seed in (1, 2)]
    made += [points(range(1024, 1074))[0]]
    assert len({each.tobytes() for each in made}) == 5


def test_blobs_lie_around_as_many_centers_with_the_wished_spread() -> None:
    values, labels = points(range(40_000))
    means = np.array([values[labels == label].mean(axis=0) for label in range(4)])
    assert set(labels) == {0, 1, 2, 3}
    assert np.abs(means).max() < 10
    assert abs((values - means[labels]).std() - 0.5) < 0.01
