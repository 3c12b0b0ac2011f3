"""Messages and sums over a network."""

from __future__ import annotations

from typing import Any

import pytest
from hyparflow.simulate import Network

PLAIN = Network(latency=1e-6, bandwidth=1e9, local_latency=1e-7, local_bandwidth=1e10, reduce_bandwidth=float("inf"))


def test_a_message_takes_latency_and_bytes() -> None:
    assert PLAIN.message(1e6, local=False) == pytest.approx(1e-6 + 1e-3)


@pytest.mark.parametrize(("rails", "expected"), [(1, 4e-3), (2, 2e-3), (8, 1e-3)])
def test_ranks_of_a_node_share_its_rails(rails: int, expected: float) -> None:
    network = Network(latency=0.0, bandwidth=1e9, rails=rails)
    assert network.message(1e6, local=False, sharing=4) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("algorithm", "steps", "moved"),
    [("ring", 14, 2 * 7 / 8), ("recursive-doubling", 3, 3), ("rabenseifner", 6, 2 * 7 / 8)],
)
def test_sums_of_eight_nodes_take_the_steps_of_their_formulas(algorithm: Any, steps: int, moved: float) -> None:
    assert PLAIN.allreduce(1e6, 8, algorithm=algorithm) == pytest.approx(steps * 1e-6 + moved * 1e-3)


def test_one_rank_has_nothing_to_sum() -> None:
    assert PLAIN.allreduce(1e6, 1) == 0.0


def test_a_hierarchical_sum_spares_the_network() -> None:
    flat, levels = (PLAIN.allreduce(1e6, 4, 8, algorithm) for algorithm in ("recursive-doubling", "hierarchical"))
    assert levels < flat / 4


def test_the_best_is_doubling_for_small_and_not_for_large_vectors() -> None:
    assert PLAIN.allreduce(8, 64) == PLAIN.allreduce(8, 64, algorithm="recursive-doubling")
    assert PLAIN.allreduce(1e8, 64) < PLAIN.allreduce(1e8, 64, algorithm="recursive-doubling") / 2
