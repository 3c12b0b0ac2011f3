"""Targets of Spack's packages: the processors in the sites' files by archspec's names, and what all nodes execute."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from archspec import cpu

from hidl_cli.inputs.load import load
from hidl_cli.inputs.overlay import list_all
from hidl_cli.site.checks import RULES
from hidl_cli.site.schema import NodeType
from hidl_cli.stack.providers.spack import microarchitecture
from tests.stack.spack.conftest import GCC, site

SITES = [entry.name for entry in list_all("site") if entry.origin == "shipped"]
#: Models that archspec has no name for.
NAMELESS = {"NVIDIA Vera", "SW26010, 1.45 GHz"}


def nodes(**models: str | None) -> dict[str, Any]:
    """Keys of a site with a node type and an open partition for each processor model; the first is the default."""
    return {
        "node_types": {name: {"arch": "x86_64", "gpus": 0, "cpu": model} for name, model in models.items()},
        "partitions": {name: {"node_type": name} for name in models},
        "default_partition": next(iter(models)),
    }


@pytest.mark.parametrize("name", SITES)
def test_every_processor_model_of_the_shipped_sites_has_a_target_of_its_family(name: str) -> None:
    for node in load(RULES, name).node_types.values():
        if node.detect:
            continue
        found = microarchitecture.of_node(node)
        assert (found is None) == (node.cpu is None or node.cpu in NAMELESS), node.cpu
        assert found is None or microarchitecture.family(found) == node.arch


@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("AMD EPYC 7763 (Milan)", "zen3"),
        ("AMD EPYC 7763 64-Core Processor", "zen3"),
        ("AMD EPYC 7742", "zen2"),
        ("AMD EPYC 9654", "zen4"),
        ("AMD EPYC 9965", "zen5"),
        ("Intel Xeon Platinum 8358", "icelake"),
        ("Intel(R) Xeon(R) Gold 6448Y", "sapphirerapids"),
        ("Intel Xeon Platinum 8558", "sapphirerapids"),
        ("Intel Xeon Gold 6248", "cascadelake"),
        ("Intel Xeon Gold 6148", "skylake_avx512"),
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "broadwell"),
        ("Intel Xeon E5-2620", "sandybridge"),
        ("a processor of tomorrow", None),
    ],
)
def test_models_without_a_code_name_are_known_by_their_numbers(model: str, target: str | None) -> None:
    assert microarchitecture.of_node(NodeType(cpu=model, arch="x86_64")) == target


def test_a_model_of_another_family_than_the_node_has_no_target() -> None:
    assert microarchitecture.of_node(NodeType(cpu="NVIDIA Grace", arch="x86_64")) is None


@pytest.mark.parametrize(
    ("models", "target"),
    [
        ({"new": "AMD EPYC 9654", "old": "AMD EPYC 7763"}, "zen3"),
        ({"old": "AMD EPYC 7763", "new": "AMD EPYC 9654"}, "zen3"),
        ({"amd": "AMD EPYC 7763", "intel": "Xeon Gold 6448Y"}, "x86_64_v3"),
        ({"amd": "AMD EPYC 7763", "other": None}, "zen3"),
        ({"other": None, "amd": "AMD EPYC 7763"}, "x86_64"),
    ],
)
def test_all_nodes_of_open_partitions_execute_the_target(models: dict[str, str | None], target: str) -> None:
    machine = site(**nodes(**models))
    assert microarchitecture.choose(machine) == target
    for model in filter(None, models.values()):
        node = microarchitecture.of_node(NodeType(cpu=model, arch="x86_64"))
        assert node is not None
        assert microarchitecture.runs_on(target, node)


def test_partitions_that_are_not_open_to_all_do_not_count() -> None:
    keys = nodes(new="AMD EPYC 9654", old="AMD EPYC 7763")
    keys["partitions"]["old"]["restricted"] = True
    assert microarchitecture.choose(site(**keys)) == "zen4"


@pytest.mark.parametrize(("version", "target"), [("9.1.0", "zen2"), ("12.2.0", "zen3"), ("4.8.5", "x86_64_v3")])
def test_the_default_compiler_generates_code_for_the_target(version: str, target: str) -> None:
    compilers = {"compilers": {"gcc": GCC | {"version": version}}, "default_compiler": "gcc"}
    assert microarchitecture.choose(site(**nodes(cpu="AMD EPYC 7763"), **compilers)) == target


def test_a_compiler_that_archspec_does_not_know_decides_nothing() -> None:
    cce = {"package": "cce", "version": "17.0.0", "prefix": "/opt/cray/pe/cce/17.0.0"}
    machine = site(**nodes(cpu="AMD EPYC 7763"), compilers={"cce": cce}, default_compiler="cce")
    assert microarchitecture.choose(machine) == "zen3"


def test_the_file_of_the_site_decides_if_it_names_a_target() -> None:
    assert microarchitecture.choose(site(**nodes(cpu="AMD EPYC 7763"), spack={"target": "x86_64"})) == "x86_64"


def test_node_types_of_unknown_processors_are_reported() -> None:
    machine = site(**nodes(amd="AMD EPYC 7763", other=None))
    assert microarchitecture.unknown_nodes(machine) == ["other"]
    assert microarchitecture.unknown_nodes(site(**nodes(other=None, amd="AMD EPYC 7763"))) == []


@pytest.mark.skipif(sys.platform != "linux", reason="archspec reads /proc/cpuinfo")
def test_a_node_that_is_this_machine_has_its_processor() -> None:
    assert microarchitecture.of_node(NodeType(detect=True)) == cpu.host().name == microarchitecture.host()
