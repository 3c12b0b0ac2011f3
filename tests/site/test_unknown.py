"""The unknown facts of a site: what somebody would want to know, and the file does not say."""

from __future__ import annotations

from typing import Any

import pytest

from hidl_cli.site.load import unknown_facts
from hidl_cli.site.schema import Site

NUMBERS = {"sockets": 1, "cores": 8, "threads_per_core": 1, "memory_gib": 4.0, "count": 2}
NODE = {"cpu": "c", "arch": "a", "gpus": 0, **NUMBERS}
GPU = {"gpus": 4, "gpu_model": "m", "gpu_arch": "sm_80", "gpu_memory_gib": 80.0}
QUEUE = {"node_type": "node", "max_nodes": 2, "max_wall": "01:00:00"}


def site(node: dict[str, Any] | None = None, queue: dict[str, Any] | None = None, **keys: Any) -> Site:
    whole = {
        "name": "x",
        "title": "X",
        "scheduler": "slurm",
        "launchers": ["srun"],
        "interconnect": "InfiniBand",
        "mpi": {"mpich": {"family": "mpich"}},
        "node_types": {"node": NODE | (node or {})},
        "partitions": {"q": QUEUE | (queue or {})},
        "default_partition": "q",
    }
    return Site.model_validate(whole | keys)


def unknown(*arguments: Any, **keys: Any) -> list[str]:
    return [".".join(path) for path in unknown_facts(site(*arguments, **keys))]


def test_nothing_is_unknown_of_a_site_that_says_all() -> None:
    assert unknown(GPU) == []


@pytest.mark.parametrize(
    ("key", "nothing"), [("status", None), ("scheduler", None), ("launchers", []), ("mpi", {}), ("interconnect", None)]
)
def test_what_a_run_starts_from_is_missed(key: str, nothing: Any) -> None:
    assert unknown(**{key: nothing}) == [key]


def test_node_types_and_partitions_are_missed_where_there_are_none() -> None:
    assert unknown(node_types={}, partitions={}, default_partition=None) == ["node_types", "partitions"]


def test_a_default_partition_is_missed_where_there_are_partitions() -> None:
    assert unknown(default_partition=None) == ["default_partition"]


@pytest.mark.parametrize("key", [key for key in NODE if key != "gpus"])
def test_each_fact_of_a_node_type_is_missed(key: str) -> None:
    assert unknown({key: None}) == [f"node_types.node.{key}"]


def test_nodes_without_gpus_have_no_model_of_them() -> None:
    assert unknown({"gpus": 0, "gpu_model": None}) == []
    assert unknown({"gpus": 2}) == [f"node_types.node.{key}" for key in ("gpu_model", "gpu_arch", "gpu_memory_gib")]


def test_the_limits_of_a_partition_are_missed_unless_they_go_by_the_jobs_size() -> None:
    assert unknown(None, {"max_nodes": None, "max_wall": None}) == ["partitions.q.max_nodes", "partitions.q.max_wall"]
    assert unknown(None, {"max_wall": None, "max_wall_by_nodes": [{"max_wall": "01:00:00"}]}) == []


def test_a_price_is_missed_where_another_partition_of_the_site_has_one() -> None:
    assert unknown() == []
    assert unknown(partitions={"q": QUEUE, "other": QUEUE | {"charge": 3.0}}) == ["partitions.q.charge"]


def test_the_machine_one_sits_at_needs_no_network_and_no_count() -> None:
    here = {"detect": True, "count": None, "gpu_arch": None, "gpu_memory_gib": None, "gpus": 1, "gpu_model": "m"}

    assert unknown(here, scheduler="local", interconnect=None, mpi={}) == []
