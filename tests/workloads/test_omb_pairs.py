"""Every pair once, nobody with two partners; and on real ranks, a figure for each pair."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain, combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.omb_pairs.schedule import rounds
from hidl_workloads.omb_pairs.tournament import names_of, players_of
from tests.workloads import ranks

pytestmark = pytest.mark.real

PAIRS = ("-m", "hidl_workloads.world", "hidl_workloads.omb_pairs")
QUICK = (
    "--latency_iterations=20",
    "--bandwidth_iterations=1",
    "--bandwidth_size=65536",
    "--warmup=1",
    "--repetitions=1",
)


@given(st.integers(0, 80))
def test_every_pair_meets_once(players: int) -> None:
    assert sorted(chain(*rounds(players))) == list(combinations(range(players), 2))


@given(st.integers(0, 80))
def test_nobody_has_two_partners_in_a_round(players: int) -> None:
    for of_round in rounds(players):
        assert len(set(chain(*of_round))) == 2 * len(of_round)


@given(st.integers(2, 80))
def test_no_round_is_wasted(players: int) -> None:
    assert len(rounds(players)) == (players if players % 2 else players - 1)


def test_the_first_rank_of_each_node_meets_the_others() -> None:
    assert players_of(["b", "b", "a", "a", "c"]) == [0, 2, 4]


def test_on_one_node_the_ranks_meet() -> None:
    assert players_of(["a", "a", "a"]) == [0, 1, 2]
    assert names_of(["a", "a"]) == ["a:0", "a:1"]


@pytest.mark.parametrize("world", [2, 4])
def test_each_pair_of_ranks_has_its_figures(stack_prefix: Callable[[str], Path], tmp_path: Path, world: int) -> None:
    document = tmp_path / "metrics.json"
    completed = ranks.run(stack_prefix("mpi"), world, *PAIRS, *QUICK, HIDL_METRICS=str(document))

    assert completed.status == 0, completed.stderr
    metrics = {metric["name"]: metric for metric in json.loads(document.read_text())["metrics"]}
    numbers = [[int(name.partition(":")[2]) for name in pair] for pair in metrics["latency"]["pairs"]]
    assert numbers == [list(pair) for pair in combinations(range(world), 2)]
    assert min(*metrics["latency"]["samples"], *metrics["bandwidth"]["samples"]) > 0


def test_one_rank_alone_is_reported_that_it_has_no_partner(stack_prefix: Callable[[str], Path]) -> None:
    completed = ranks.run(stack_prefix("mpi"), 1, *PAIRS, *QUICK)
    assert (completed.status != 0, "omb_pairs: requires two ranks or more" in completed.stderr) == (True, True)


def test_a_parameter_that_cannot_be_meant_is_refused(stack_prefix: Callable[[str], Path]) -> None:
    completed = ranks.run(stack_prefix("mpi"), 2, *PAIRS, "--repetitions=0")
    assert "omb_pairs: repetitions must be 1 or more, not 0" in completed.stderr
