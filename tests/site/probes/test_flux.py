"""What Flux is, from recorded answers of flux-core, and from answers composed like those of Tuolumne."""

from __future__ import annotations

import json

import pytest

from hidl_cli.site.probes import flux
from hidl_cli.site.probes.facts import SchedulerFacts
from hidl_cli.site.probes.host import Host
from tests.site.recording import DIRECTORY, RecordedHost, recorded

LIST = """\
     STATE QUEUE              NNODES NCORES NGPUS NODELIST
      free pbatch                  3    288    12 tuolumne[1001-1003]
 allocated pbatch,pdebug           1     96     4 tuolumne1004
      down pdebug                  0      0     0
"""
QUEUES = """\
QUEUE    EN ST TDEFAULT   TLIMIT     NNODES     NCORES      NGPUS
pbatch*   ✔  ✔      30m       1d      0-inf      0-inf      0-inf
pdebug    ✔  ✗      30m     1.5h        1-2      0-inf      0-inf
closed    ✗  ✔      inf      inf        0-4      0-inf      0-inf
"""
SET = {
    "version": 1,
    "execution": {
        "R_lite": [
            {"rank": "0-2", "children": {"core": "0-95", "gpu": "0-3"}},
            {"rank": "3", "children": {"core": "0-63"}},
        ],
        "nodelist": ["tuolumne[1001-1004]"],
        "properties": {"pbatch": "0-3", "mi300a": "0-2"},
    },
}


def probed(host: Host) -> SchedulerFacts:
    found = flux.probe(host)
    assert found is not None
    return found


def composed(**answers: str) -> SchedulerFacts:
    said = {
        "flux resource list": LIST,
        "flux queue list": QUEUES,
        "flux resource R": json.dumps(SET),
        "flux getattr hostlist": "tuolumne[1001-1004]\n",
    } | {command.replace("_", " "): answer for command, answer in answers.items()}
    return probed(RecordedHost(DIRECTORY / "none", programs={"flux": "/usr/bin/flux"}, answers=said))


def test_the_recorded_instance_has_a_name_a_version_and_its_queues() -> None:
    found = probed(recorded("flux"))
    assert (found.cluster, found.version) == ("vm", "0.88.0")
    assert {queue.name: (queue.max_nodes, queue.max_wall) for queue in found.queues} == {
        "batch": (4, "01:00:00"),
        "debug": (1, "00:10:00"),
        "closed": (4, "1-00:00:00"),
    }


def test_brokers_on_one_host_are_one_node() -> None:
    (node,) = probed(recorded("flux")).nodes
    assert (node.name, node.hardware.cores, node.hardware.gpus) == ("vm", 4, 0)
    assert node.queues == ("batch", "debug", "closed")


def test_cores_and_gpus_of_each_node_are_those_of_the_resource_set() -> None:
    hardware = {node.name: (node.hardware.cores, node.hardware.gpus) for node in composed().nodes}
    assert hardware["tuolumne1001"] == (96, 4)
    assert hardware["tuolumne1004"] == (64, 0)


def test_properties_are_features_and_queues_are_not() -> None:
    features = {node.name: node.features for node in composed().nodes}
    assert (features["tuolumne1001"], features["tuolumne1004"]) == ({"mi300a"}, set())


def test_nodes_belong_to_the_queues_of_their_row() -> None:
    queues = {node.name: node.queues for node in composed().nodes}
    assert (queues["tuolumne1001"], queues["tuolumne1004"]) == (("pbatch",), ("pbatch", "pdebug"))


def test_queues_have_limits_and_one_is_the_default() -> None:
    queues = {queue.name: queue for queue in composed().queues}
    assert (queues["pbatch"].is_default, queues["pbatch"].max_nodes, queues["pbatch"].max_wall) == (
        True,
        None,
        "1-00:00:00",
    )
    assert (queues["pdebug"].max_nodes, queues["pdebug"].max_wall, queues["pdebug"].remarks) == (
        2,
        "01:30:00",
        ("not started",),
    )
    assert (queues["closed"].left_out, queues["closed"].max_wall) == ("it is disabled", None)


@pytest.mark.parametrize("answer", ["", "{}", "[]", '{"execution": {"nodelist": 3, "R_lite": 4}}'])
def test_without_a_resource_set_a_row_is_divided_among_its_nodes(answer: str) -> None:
    hardware = {node.name: (node.hardware.cores, node.hardware.gpus) for node in composed(flux_resource_R=answer).nodes}
    assert (hardware["tuolumne1001"], hardware["tuolumne1004"]) == ((96, 4), (96, 4))


def test_an_instance_without_queues_is_described_too() -> None:
    table = "     STATE NNODES NCORES NGPUS NODELIST\n      free      2     16     0 n[1-2]\n"
    found = composed(flux_resource_list=table, flux_queue_list="", flux_resource_R="")
    assert ([node.name for node in found.nodes], found.queues) == (["n1", "n2"], ())
    assert "no queues are configured, so jobs do not name one" in found.remarks


def test_nodes_whose_cores_are_not_told_have_an_unknown_number() -> None:
    table = "     STATE NNODES NCORES NGPUS NODELIST\n      free      2      0     0 n[1-2]\n"
    found = composed(flux_resource_list=table, flux_queue_list="", flux_resource_R="")
    assert [(node.hardware.cores, node.hardware.gpus) for node in found.nodes] == [(None, 0)] * 2


def test_a_broker_that_gives_no_answer_has_no_sources() -> None:
    host = RecordedHost(DIRECTORY / "none", programs={"flux": "/usr/bin/flux"})
    assert flux.probe(host) == SchedulerFacts("flux")


def test_without_flux_there_is_none() -> None:
    assert flux.probe(RecordedHost(DIRECTORY / "none")) is None
