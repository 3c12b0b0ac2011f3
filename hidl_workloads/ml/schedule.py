"""Tasks over groups of ranks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def deal(costs: Sequence[float], groups: int) -> list[list[int]]:
    """Deal tasks, each with a cost, to ``groups``: the dearest first, each to the group with the least so far.

    Returns the tasks' numbers for each group; equal choices go to the lower number. The busiest group gets at most
    4/3 of what the best plan would give it (Graham 1969, Bounds on multiprocessing timing anomalies, SIAM J. Appl.
    Math. 17, 416-429). Every rank computes the same plan, so no rank asks another for work.
    """
    dealt: list[list[int]] = [[] for _ in range(groups)]
    loads = [(0.0, group) for group in range(groups)]
    for task in sorted(range(len(costs)), key=lambda each: (-costs[each], each)):
        load, group = heapq.heappop(loads)
        dealt[group].append(task)
        heapq.heappush(loads, (load + costs[task], group))
    return dealt


def group_of(rank: int, ranks: int, size: int) -> tuple[int, int]:
    """The group of ``rank``, and how many groups there are, where each has ``size`` ranks at least, if there are."""
    groups = max(1, ranks // size)
    return rank * groups // ranks, groups
