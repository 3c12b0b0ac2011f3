from __future__ import annotations

import numpy as np
import pytest

from hidl_cli.analysis.scaling import SLOW as SIGNIFICANT
from hidl_cli.analysis.scaling import nodes


def rates(hosts: int, *, rounds: int = 5, noise: float = 0.01, slow: float = 1.0, seed: int = 1) -> dict:
    """By round and host; the last host is slower by the factor ``slow``."""
    values = 100 * np.exp(noise * np.random.default_rng(seed).standard_normal((rounds, hosts)))
    values[:, -1] *= slow
    return {r: {f"n{i}": float(v) for i, v in enumerate(row)} for r, row in enumerate(values, 1)}


def slow_ones(found: tuple) -> list[str]:
    return [node.host for node in found if node.slow]


@pytest.mark.parametrize("hosts", [4, 8, 64])
def test_a_node_that_is_20_percent_slower_is_named(hosts: int) -> None:
    named = [slow_ones(nodes(rates(hosts, slow=0.8, seed=seed))) for seed in range(30)]
    assert sum(f"n{hosts - 1}" in each for each in named) >= 28


@pytest.mark.parametrize("hosts", [4, 8, 64])
def test_among_equal_nodes_hardly_one_set_in_a_hundred_has_a_slow_one(hosts: int) -> None:
    named = [slow_ones(nodes(rates(hosts, noise=0.1, seed=seed))) for seed in range(500)]
    assert sum(map(bool, named)) / 500 <= 0.025


def test_how_far_behind_is_reported_and_the_slowest_comes_first() -> None:
    slowest, *_ = nodes(rates(8, slow=0.8))
    assert (slowest.host, slowest.relative) == ("n7", pytest.approx(0.8, abs=0.02))


def test_a_difference_that_harms_nobody_is_not_slow_however_certain() -> None:
    assert slow_ones(nodes(rates(16, noise=0.0005, slow=0.98))) == []


def test_a_fast_node_is_not_slow() -> None:
    assert slow_ones(nodes(rates(8, slow=1.5))) == []


def test_one_bad_round_makes_no_slow_node() -> None:
    measured = rates(8)
    measured[2]["n3"] *= 0.5
    assert slow_ones(nodes(measured)) == []


def test_of_three_nodes_none_is_called_slow() -> None:
    assert [node.p for node in nodes(rates(3, slow=0.5))] == [None] * 3


def test_equal_values_make_no_slow_node_and_one_other_does() -> None:
    same = {1: dict.fromkeys(("a", "b", "c", "d"), 5.01)}
    assert slow_ones(nodes(same)) == []
    assert slow_ones(nodes({1: {**same[1], "d": 4.0}})) == ["d"]


@pytest.mark.parametrize(("true", "digits", "noise"), [(2.97, 1, 0.01), (29.7, 0, 0.01), (0.297, 2, 0.015)])
@pytest.mark.parametrize(("hosts", "rounds"), [(4, 1), (8, 1), (8, 5), (16, 1)])
def test_equal_nodes_are_not_slow_for_the_digits_printed(
    true: float, digits: int, noise: float, *, hosts: int, rounds: int
) -> None:
    random = np.random.default_rng(1)
    named = []
    for _ in range(200):
        values = np.round(true * np.exp(noise * random.standard_normal((rounds, hosts))), digits)
        named.append(
            slow_ones(nodes({r: {f"n{i}": float(v) for i, v in enumerate(row)} for r, row in enumerate(values)}))
        )
    assert sum(map(bool, named)) / 200 <= SIGNIFICANT


def test_a_slow_node_is_named_in_spite_of_few_digits() -> None:
    measured = rates(8, slow=0.7)
    few = {r: {host: round(rate / 33, 1) for host, rate in of_round.items()} for r, of_round in measured.items()}
    assert slow_ones(nodes(few)) == ["n7"]
    times = {r: {host: 1 / rate for host, rate in of_round.items()} for r, of_round in few.items()}
    assert [node.slow for node in nodes(times, digits=0.2)] == [False] * 8


@pytest.mark.parametrize("lost", [[2], [1, 3], [1, 2, 3, 4]])
def test_a_slow_node_is_named_though_some_of_its_copies_left_no_value(lost: list[int]) -> None:
    measured = rates(8, slow=0.5)
    for round_ in lost:
        del measured[round_]["n7"]
    assert slow_ones(nodes(measured)) == ["n7"]


def test_rounds_on_other_sets_of_nodes_are_compared_by_the_nodes_that_they_share() -> None:
    measured = rates(8, rounds=6, slow=0.5)
    for round_, of_round in measured.items():
        for host in ("n0", "n1", "n2") if round_ % 2 else ("n3", "n4", "n5"):
            del of_round[host]
    assert slow_ones(nodes(measured)) == ["n7"]


def test_a_slow_node_is_named_though_it_was_fast_in_the_only_complete_round() -> None:
    measured = rates(8, slow=0.5)
    for round_ in (1, 2, 3, 4):
        del measured[round_][f"n{round_}"]
    measured[5]["n7"] *= 2
    assert slow_ones(nodes(measured)) == ["n7"]
