"""What several ranks saw of the same stages, put together."""

from __future__ import annotations

from hyparflow.planning.rehearsal import slowest


def test_of_the_ranks_that_ran_a_stage_the_slowest_counts() -> None:
    replicas = [{0: (1.0, 2.0)}, {1: (3.0, 0.0)}, {0: (1.5, 1.0)}, {1: (2.0, 2.0)}]

    assert slowest(replicas) == [(1.0, 2.0), (2.0, 2.0)]


def test_stages_come_in_their_order_however_they_lie_on_the_ranks() -> None:
    chunks = [{1: (3.0, 4.0), 3: (7.0, 8.0)}, {0: (1.0, 2.0), 2: (5.0, 6.0)}]

    assert slowest(chunks) == [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0), (7.0, 8.0)]
