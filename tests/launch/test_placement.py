"""From sizes to placements, within the site's limits."""

from __future__ import annotations

import pytest

from hidl_cli.errors import SubmitRefused, UsageError
from hidl_cli.launch.placement import Placement, bind_to_cores
from hidl_cli.site.schema import Site


def site(cores: int | None = 8, max_nodes: int | None = 4) -> Site:
    return Site.model_validate(
        {
            "name": "s",
            "title": "a site",
            "scheduler": "local",
            "launchers": ["mpiexec"],
            "node_types": {"n": {"cores": cores}},
            "partitions": {"p": {"node_type": "n", "max_nodes": max_nodes}, "q": {"node_type": "n", "min_nodes": 2}},
            "default_partition": "p",
        }
    )


def test_all_steps_of_a_study_get_the_threads_of_the_fullest_one() -> None:
    placements = bind_to_cores(
        site(), [Placement.of_ranks(1, None), Placement.of_ranks(2, None), Placement.of_ranks(4, None)]
    )
    assert [p.threads_per_rank for p in placements] == [2, 2, 2]
    assert all(p.bind for p in placements)


def test_more_ranks_than_cores_are_not_bound() -> None:
    (placement,) = bind_to_cores(site(cores=2), [Placement.of_ranks(3, None)])
    assert (placement.threads_per_rank, placement.bind) == (1, False)


def test_given_threads_are_kept_and_bound_only_if_they_fit() -> None:
    assert bind_to_cores(site(), [Placement.of_ranks(2, None)], threads=4)[0].bind
    assert not bind_to_cores(site(), [Placement.of_ranks(2, None)], threads=5)[0].bind


def test_unknown_cores_mean_one_thread_and_no_binding() -> None:
    (placement,) = bind_to_cores(site(cores=None), [Placement.of_nodes(2, 4)])
    assert (placement.threads_per_rank, placement.bind, placement.ranks) == (1, False, 8)


def test_ranks_fill_as_few_nodes_as_hold_them() -> None:
    assert Placement.of_ranks(5, 2) == Placement(nodes=3, ranks_per_node=2, ranks=5)
    assert Placement.of_ranks(1, 4) == Placement(nodes=1, ranks_per_node=1, ranks=1)


@pytest.mark.parametrize(("nodes", "partition"), [(5, "p"), (1, "q")])
def test_a_size_outside_the_limits_is_refused_with_the_limits(nodes: int, partition: str) -> None:
    with pytest.raises(SubmitRefused, match=r"allows (1 to 4 nodes|2 nodes or more)"):
        bind_to_cores(site(), [Placement.of_nodes(nodes, 1)], partition=partition)


def test_the_steps_of_a_study_share_the_job_of_the_largest() -> None:
    steps = [Placement.of_nodes(1, 1), Placement.of_nodes(2, 1)]
    assert [placement.nodes for placement in bind_to_cores(site(), steps, partition="q")] == [1, 2]


def test_unknown_partition_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        bind_to_cores(site(), [Placement.of_nodes(1, 1)], partition="gpu")
    assert caught.value.hint == "available partitions: p, q"
