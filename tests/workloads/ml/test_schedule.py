"""Tasks over groups of ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import floats, integers, lists

from hidl_workloads.ml.schedule import deal, group_of

COSTS = lists(floats(0.1, 100), max_size=80)


@given(COSTS, integers(1, 30))
def test_every_task_is_dealt_once(costs: list[float], groups: int) -> None:
    dealt = deal(costs, groups)
    assert len(dealt) == groups
    assert sorted(task for each in dealt for task in each) == list(range(len(costs)))


@given(COSTS, integers(1, 30))
def test_no_group_is_busier_than_one_task_above_the_mean(costs: list[float], groups: int) -> None:
    busiest = max(sum(costs[task] for task in each) for each in deal(costs, groups))
    assert busiest <= sum(costs) / groups + max(costs, default=0) + 1e-9


@given(integers(1, 400), integers(1, 50))
def test_groups_are_as_large_as_wished_or_larger_and_differ_by_one_at_most(ranks: int, size: int) -> None:
    found = [group_of(rank, ranks, size) for rank in range(ranks)]
    ((groups,),) = ({groups for _, groups in found},)
    sizes = [[group for group, _ in found].count(number) for number in range(groups)]
    assert min(sizes) >= min(size, ranks)
    assert max(sizes) - min(sizes) <= 1 or groups == 1
