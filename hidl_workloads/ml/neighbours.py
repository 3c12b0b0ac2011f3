"""The k nearest of many: of one block, and of several lists, the lower row of equals each time."""

from __future__ import annotations

from typing import Any

import numpy as np

from hidl_workloads.ml.streams import Array

NO_ROW = np.iinfo(np.int64).max
"""The row of a neighbour that is not there; its distance is inf."""


def nearest_of_block(xp: Any, distances: Array, rows: Array, count: int) -> tuple[Array, Array]:
    """The ``count`` smallest of each line of ``distances`` (queries, block), and their ``rows``, (block,) and rising.

    Returns two arrays (queries, min(count, block)), by distance, then row.
    """
    size = distances.shape[1]
    if count >= size:
        order = xp.argsort(distances, axis=1, kind="stable")
    else:
        order = xp.argpartition(distances, count - 1, axis=1)[:, :count]
        last = xp.take_along_axis(distances, order, axis=1).max(axis=1)
        # argpartition chooses arbitrarily among equal distances; if that matters, a stable sort decides.
        doubtful = xp.flatnonzero((distances <= last[:, None]).sum(axis=1) > count)
        if len(doubtful):
            order[doubtful] = xp.argsort(distances[doubtful], axis=1, kind="stable")[:, :count]
        order = xp.sort(order, axis=1)
    found = xp.take_along_axis(distances, order, axis=1)
    by_distance = xp.argsort(found, axis=1, kind="stable")
    return xp.take_along_axis(found, by_distance, axis=1), rows[xp.take_along_axis(order, by_distance, axis=1)]


def merge(xp: Any, distances: Array, rows: Array, count: int) -> tuple[Array, Array]:
    """The ``count`` nearest of lists that were found apart, joined to (queries, all): by distance, then row."""
    by_row = xp.argsort(rows, axis=1, kind="stable")
    distances, rows = (xp.take_along_axis(each, by_row, axis=1) for each in (distances, rows))
    by_distance = xp.argsort(distances, axis=1, kind="stable")[:, :count]
    return xp.take_along_axis(distances, by_distance, axis=1), xp.take_along_axis(rows, by_distance, axis=1)


def vote(labels: Array, classes: int) -> Array:
    """The most frequent of each line of ``labels`` (queries, neighbours), the lowest of equals: (queries,), host's."""
    counts = np.zeros((len(labels), classes), dtype=np.int64)
    np.add.at(counts, (np.arange(len(labels))[:, None], labels), 1)
    result: Array = counts.argmax(axis=1)
    return result
