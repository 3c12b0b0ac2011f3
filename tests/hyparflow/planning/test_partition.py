"""The minimax cut against all cuts that there are."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hyparflow.errors import PlanError
from hyparflow.graph.types import Graph
from hyparflow.planning.network import Network
from hyparflow.planning.partition import Bounds, cut
from hyparflow.planning.stages import stages_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hyparflow.graphs import chain, graph

FREE = Network(local_bandwidth=float("inf"), message_seconds=0.0)


def bounds(stages: int, limit: float | None = None, recompute: bool | None = None, in_flight: int = 1) -> Bounds:
    return Bounds((in_flight,) * stages, (recompute,) * stages, limit)


def dearest(model: Graph, seconds: list[float], assignment: tuple[int, ...], network: Network) -> float:
    """What the dearest stage of an assignment costs, counted from its stages."""
    return max(
        sum(seconds[node] for node in stage.nodes)
        + 2
        * sum(
            network.message_seconds + model.tensors[tensor].bytes_per_sample / network.local_bandwidth
            for tensor in (*stage.receives, *stage.sends)
            if model.tensors[tensor].producer is not None
        )
        for stage in stages_of(model, assignment)
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[Graph, list[float], int]:
    count = draw(st.integers(2, 9))
    taken = [
        sorted({draw(st.integers(0, node)), *draw(st.lists(st.integers(0, node), max_size=2))}) for node in range(count)
    ]
    seconds = draw(st.lists(st.floats(0.001, 1.0), min_size=count, max_size=count))
    return graph(taken), seconds, draw(st.integers(1, min(4, count)))


@settings(deadline=None, max_examples=60)
@given(problems(), st.sampled_from([FREE, Network(local_bandwidth=1e3, message_seconds=0.01)]))
def test_no_cut_has_a_cheaper_dearest_stage(problem: tuple[Graph, list[float], int], network: Network) -> None:
    model, seconds, stages = problem
    halves = np.array(seconds) / 2
    found = cut(model, halves, halves, samples=1, bounds=bounds(stages), network=network)
    count = len(seconds)
    cuts = [(0, *places, count) for places in combinations(range(1, count), stages - 1)]
    every = [tuple(stage for stage in range(stages) for _ in range(c[stage], c[stage + 1])) for c in cuts]
    best = min(dearest(model, seconds, assignment, network) for assignment in every)
    assert dearest(model, seconds, found, network) == pytest.approx(best)


def test_a_cut_goes_where_little_crosses() -> None:
    taken = [[0], [1], [1, 2], [3], [3, 4]]  # two residual blocks; between them one tensor crosses
    halves = np.full(5, 0.1)
    dear = Network(local_bandwidth=1e3, message_seconds=1.0)
    assert cut(graph(taken), halves, halves, samples=1, bounds=bounds(2), network=dear) == (0, 0, 0, 1, 1)


def test_a_memory_limit_moves_the_cut() -> None:
    # The first node costs as much as the three others, which hold three times as much.
    halves = np.array([3.0, 1.0, 1.0, 1.0])
    model = chain(4, parameters=0)
    free = cut(model, halves, halves, samples=1, bounds=bounds(2, recompute=False), network=FREE)
    tight = cut(model, halves, halves, samples=1, bounds=bounds(2, limit=3 * 128, recompute=False), network=FREE)
    assert (free, tight) == ((0, 1, 1, 1), (0, 0, 1, 1))


def test_recomputation_makes_room_and_is_counted() -> None:
    halves = np.ones(6)
    limit = 6 * 128  # not the 3 activations and what is received, four times over
    with pytest.raises(PlanError, match="no cut of made into 2 stages fits"):
        cut(chain(6, parameters=0), halves, halves, samples=1, bounds=bounds(2, limit, False, 4), network=FREE)
    found = cut(chain(6, parameters=0), halves, halves, samples=1, bounds=bounds(2, 8 * 128, None, 4), network=FREE)
    assert found == (0, 0, 0, 1, 1, 1)


def test_thousands_of_nodes_into_dozens_of_stages_are_cut_evenly() -> None:
    seconds = np.random.default_rng(1).uniform(0.5, 1.5, 1500)
    assignment = cut(chain(1500, skip=3), seconds, seconds, samples=1, bounds=bounds(24), network=FREE)
    sums = np.bincount(assignment, weights=seconds)
    assert sums.max() / sums.mean() < 1.02


def test_nodes_that_belong_together_are_on_one_stage() -> None:
    model = replace(chain(8), bound=((1, 5),))
    seconds = np.ones(8)

    found = cut(model, seconds, seconds, samples=1, bounds=bounds(3), network=FREE)

    assert len(set(found[1:6])) == 1
    assert set(found) == {0, 1, 2}


def test_nodes_that_belong_together_and_leave_too_few_places_to_cut_are_named() -> None:
    model = replace(chain(8), bound=((0, 6),))

    with pytest.raises(PlanError, match="leaves room for 2 of 3 stages"):
        cut(model, np.ones(8), np.ones(8), samples=1, bounds=bounds(3), network=FREE)
