"""The speedups of GEMS over one micro-batch at a time that docs/explanation/hyparflow-simulator.md states."""

from __future__ import annotations

import pytest
from hyparflow.planning.prediction import timeline
from hyparflow.schedules import schedule

PARTITIONS = 4


def speedup(pairs: int, backward: float) -> float:
    """Return the speedup with equal stages, whose forward passes take 1 and whose messages take no time."""
    transfers = {(stage, stage + 1): 0.0 for stage in range(PARTITIONS - 1)}
    costs = ([1.0] * PARTITIONS, [backward] * PARTITIONS)
    seconds = timeline(schedule("gems", PARTITIONS, 2 * pairs), *costs, transfers).seconds
    alone = timeline(schedule("1f1b", PARTITIONS, 1), *costs, transfers).seconds
    return 2 * pairs * alone / seconds


@pytest.mark.parametrize(("pairs", "expected"), [(1, 1.14), (2, 1.23), (4, 1.28)])
def test_more_pairs_before_an_update_are_faster(pairs: int, expected: float) -> None:
    assert speedup(pairs, 2.0) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(("backward", "limit"), [(2.0, 4 / 3), (1.0, 1.6)])
def test_the_speedup_of_many_pairs_approaches_its_limit(backward: float, limit: float) -> None:
    assert limit == pytest.approx(PARTITIONS * (1 + backward) / (PARTITIONS * backward + 1))
    assert limit - 0.01 < speedup(100, backward) < limit


def test_the_text_about_the_cost_of_an_update_adds_up() -> None:
    """An update of 3.5 forward passes, and a sum over the two copies of 2.4, give the published speedups."""
    update, total = 3.5, 2.4
    alone = PARTITIONS * 3 + update
    assert 2 * alone / (21 + update + total) == pytest.approx(7.25 / 6.28, abs=0.005)
    assert alone / 9 == pytest.approx(7.25 / 4.21, abs=0.005)
