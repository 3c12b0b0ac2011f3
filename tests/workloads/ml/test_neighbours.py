"""The k nearest, with ties: distances are small whole numbers here, so that there are many."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis.strategies import integers

from hidl_workloads.ml.neighbours import merge, nearest_of_block, vote

COUNT, SIZE, SEED = integers(1, 12), integers(1, 60), integers(0, 2**32)


def table(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 6, (5, size)).astype(float)


def by_sorting(distances: np.ndarray, rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """All of them by distance, then row."""
    orders = [sorted(range(len(rows)), key=lambda i: (line[i], rows[i]))[:count] for line in distances]
    return np.array([line[o] for line, o in zip(distances, orders, strict=True)]), np.array([rows[o] for o in orders])


@given(SIZE, COUNT, SEED)
def test_the_nearest_of_a_block_are_the_first_of_all_of_them_in_order(size: int, count: int, seed: int) -> None:
    distances, rows = table(size, seed), np.arange(100, 100 + size)
    found, expected = nearest_of_block(np, distances, rows, count), by_sorting(distances, rows, count)
    assert (found[0] == expected[0]).all()
    assert (found[1] == expected[1]).all()


@given(SIZE, COUNT, SEED, integers(1, 7))
def test_merged_lists_are_the_nearest_of_the_whole(size: int, count: int, seed: int, parts: int) -> None:
    distances, rows = table(size, seed), np.arange(size)
    lists = [
        nearest_of_block(np, distances[:, part], rows[part], count)
        for part in np.array_split(np.arange(size), min(parts, size))
    ]
    np.random.default_rng(seed).shuffle(lists)
    found = merge(np, *(np.concatenate(each, axis=1) for each in zip(*lists, strict=True)), count)
    expected = by_sorting(distances, rows, count)
    assert (found[0] == expected[0]).all()
    assert (found[1] == expected[1]).all()


def test_the_lowest_of_equally_frequent_classes_wins() -> None:
    assert vote(np.array([[2, 1, 2, 1], [0, 0, 3, 1], [3, 3, 3, 0]]), 4).tolist() == [1, 0, 3]
