"""What PBS is, from recorded answers of OpenPBS, and from answers composed like those of Polaris."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hidl_cli.site.probes import pbs
from hidl_cli.site.probes.facts import Queue, SchedulerFacts
from hidl_cli.site.probes.host import Host
from tests.site.recording import DIRECTORY, RecordedHost, recorded

PROGRAMS = {"pbsnodes": "/opt/pbs/bin/pbsnodes", "qstat": "/opt/pbs/bin/qstat"}


def probed(host: Host) -> SchedulerFacts:
    found = pbs.probe(host)
    assert found is not None
    return found


@pytest.fixture
def openpbs() -> SchedulerFacts:
    return probed(recorded("openpbs"))


def composed(queues: dict[str, Any], nodes: dict[str, Any], default: str = "debug") -> SchedulerFacts:
    answers = {
        "qstat -B -f -F json": {"pbs_version": "2022.1.3", "Server": {"polaris-pbs-01": {"default_queue": default}}},
        "qstat -Q -f -F json": {"Queue": queues},
        "pbsnodes -a -F json": {"nodes": nodes},
    }
    said = {command: json.dumps(answer) for command, answer in answers.items()}
    return probed(RecordedHost(DIRECTORY / "none", programs=PROGRAMS, answers=said))


def queue(kind: str = "Execution", **keys: Any) -> dict[str, Any]:
    return {"queue_type": kind, "enabled": "True", "started": "True"} | keys


def node(**resources: Any) -> dict[str, Any]:
    return {"ntype": "PBS", "resources_available": {"arch": "linux", "ncpus": 64, "mem": "527672492kb"} | resources}


POLARIS = {
    "debug": queue(resources_max={"nodect": 2, "walltime": "01:00:00"}),
    "prod": queue("Route", route_destinations="small,medium", resources_min={"nodect": 10}),
    "small": queue(
        from_route_only="True",
        resources_min={"nodect": 10},
        resources_max={"nodect": 24, "walltime": "03:00:00"},
    ),
    "medium": queue(
        from_route_only="True",
        resources_min={"nodect": 25},
        resources_max={"nodect": 99, "walltime": "06:00:00"},
    ),
}


def named(found: SchedulerFacts, name: str) -> Queue:
    return next(queue for queue in found.queues if queue.name == name)


def test_the_server_has_a_name_and_a_version(openpbs: SchedulerFacts) -> None:
    assert (openpbs.cluster, openpbs.version) == ("node1", "23.06.06")


def test_queues_have_limits_of_nodes_and_wall_time(openpbs: SchedulerFacts) -> None:
    limits = {queue.name: (queue.min_nodes, queue.max_nodes, queue.max_wall) for queue in openpbs.queues}
    assert limits["debug"] == (1, 2, "01:00:00")
    assert limits["prod"] == (2, 3, "24:00:00")
    assert limits["workq"] == (1, None, None)


def test_the_default_queue_is_that_of_the_server(openpbs: SchedulerFacts) -> None:
    assert [queue.name for queue in openpbs.queues if queue.is_default] == ["workq"]


def test_a_disabled_queue_is_left_out(openpbs: SchedulerFacts) -> None:
    assert [queue.name for queue in openpbs.queues if queue.left_out] == ["closed"]


def test_a_queue_with_a_list_of_users_is_restricted(openpbs: SchedulerFacts) -> None:
    assert [queue.name for queue in openpbs.queues if queue.restricted] == ["staff"]


def test_nodes_have_processors_and_memory_and_serve_each_queue(openpbs: SchedulerFacts) -> None:
    assert [each.name for each in openpbs.nodes] == ["node2", "node3", "node4"]
    hardware = openpbs.nodes[0].hardware
    assert (hardware.processors, hardware.cores, hardware.memory_mib) == (4, None, 24104)
    assert "debug" in openpbs.nodes[0].queues


def test_a_routing_queue_has_the_limits_and_the_nodes_of_its_destinations() -> None:
    found = composed(POLARIS, {"x1": node(ngpus=4)})
    prod = named(found, "prod")
    assert (prod.min_nodes, prod.max_nodes, prod.max_wall) == (10, 99, "06:00:00")
    assert "prod" in found.nodes[0].queues


def test_a_queue_behind_a_routing_queue_takes_no_jobs_of_users() -> None:
    assert named(composed(POLARIS, {}), "small").left_out == "it only accepts jobs from routing queues"


def test_gpus_are_counted_by_ngpus_and_named_by_a_custom_resource() -> None:
    found = composed(POLARIS, {"x1": node(ngpus=4, gpu_type="a100"), "login": node()})
    assert [(each.hardware.gpus, each.hardware.gpu_model) for each in found.nodes] == [(4, "a100"), (0, None)]
    assert "gpu_type=a100" in found.nodes[0].features


def test_without_ngpus_the_number_of_gpus_is_unknown() -> None:
    found = composed(POLARIS, {"x1": node()})
    assert found.nodes[0].hardware.gpus is None
    assert "no node has the resource ngpus, so the GPUs of nodes are unknown" in found.remarks


def test_a_queue_has_the_nodes_that_its_default_chunk_asks_for() -> None:
    queues = {"a": queue(default_chunk={"Qlist": "a", "ncpus": 1}), "b": queue(default_chunk={"Qlist": "b"})}
    found = composed(queues, {"n1": node(Qlist="a"), "n2": node(Qlist="a,b")})
    assert {each.name: each.queues for each in found.nodes} == {"n1": ("a",), "n2": ("a", "b")}


def test_a_node_of_one_queue_serves_no_other() -> None:
    found = composed({"a": queue(), "b": queue()}, {"n1": node() | {"queue": "b"}})
    assert found.nodes[0].queues == ("b",)


@pytest.mark.parametrize(
    ("size", "mebibytes"), [("512gb", 524288), ("1048576kb", 1024), ("1024", None), ("2097152", 2), ("1mw", 8)]
)
def test_a_size_has_the_units_of_pbs(size: str, mebibytes: int | None) -> None:
    assert composed({}, {"n1": node(mem=size)}).nodes[0].hardware.memory_mib == mebibytes


def test_a_wall_time_may_be_in_seconds() -> None:
    found = composed({"a": queue(resources_max={"walltime": 5400})}, {})
    assert named(found, "a").max_wall == "01:30:00"


@pytest.mark.parametrize("answer", ["", "not JSON", "[]", '{"Server": 3}', "{}"])
def test_a_server_that_gives_no_usable_answer_has_no_sources(answer: str) -> None:
    host = RecordedHost(DIRECTORY / "none", programs=PROGRAMS, answers={"qstat -B -f -F json": answer})
    assert pbs.probe(host) == SchedulerFacts("pbs")


def test_odd_values_are_unknown() -> None:
    found = composed({"a": queue(resources_max=7, route_destinations=3)}, {"n1": {"resources_available": []}, "n2": 4})
    assert [each.name for each in found.nodes] == ["n1"]


def test_without_pbsnodes_there_is_no_pbs() -> None:
    assert pbs.probe(RecordedHost(DIRECTORY / "none")) is None


def test_vnodes_of_a_host_are_one_node() -> None:
    """As with ``vnode_per_numa_node`` of the cgroups hook: the resources are those of the NUMA domains."""
    nodes = {}
    for host in ("n1", "n2", "n3", "n4"):
        nodes[host] = node(host=host, ncpus=0, mem="0kb", ngpus=0)
        for domain in (0, 1):
            nodes[f"{host}[{domain}]"] = node(host=host, ncpus=32, mem="262144mb", ngpus=2)
    found = composed({"debug": queue()}, nodes)
    assert [each.name for each in found.nodes] == ["n1", "n2", "n3", "n4"]
    for each in found.nodes:
        assert (each.hardware.processors, each.hardware.gpus, each.hardware.memory_mib) == (64, 4, 524288)
        assert each.queues == ("debug",)
