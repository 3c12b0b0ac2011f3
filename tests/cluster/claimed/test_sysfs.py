"""What a node shows of the processors that it claims."""

from __future__ import annotations

from pathlib import Path

import pytest
from hidl_twin.claimed import sysfs
from hidl_twin.claimed.processors import Processors

from hidl_cli.errors import UsageError
from hidl_cli.site.machine import machine

CLX = Processors(56, 2, 1, "Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz")
KNL = Processors(68, 1, 4, "Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz")
UNEVEN = Processors(7, 2, 2)
REAL = "processor\t: 0\nmodel name\t: Real \\1 CPU\nphysical id\t: 3\nsiblings\t: 4\ncore id\t: 9\ncpu cores\t: 4\n\n"


def shown(root: Path, claimed: Processors) -> Path:
    sysfs.write_cpu_tree(root / "sys/devices/system/cpu", claimed)
    sysfs.write_node_tree(root / "sys/devices/system/node", claimed, 64 * 2**20)
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(sysfs.cpuinfo(REAL, claimed))
    return root


@pytest.mark.parametrize("claimed", [CLX, KNL, UNEVEN, Processors(288, 4, 2)])
def test_hidl_detects_what_is_claimed(tmp_path: Path, claimed: Processors) -> None:
    seen = machine(shown(tmp_path, claimed), processors=range(claimed.cpus))
    sockets = None if claimed is UNEVEN else claimed.sockets  # placements divide the cores of a node evenly
    assert (seen.cores, seen.sockets, seen.threads_per_core) == (claimed.cores, sockets, claimed.threads_per_core)
    assert seen.cpu == (claimed.model or "Real \\1 CPU")


def test_cores_and_sockets_are_numbered_as_linux_numbers_them(tmp_path: Path) -> None:
    cpus = shown(tmp_path, UNEVEN) / "sys/devices/system/cpu"

    def told(name: str) -> list[str]:
        return [(cpus / f"cpu{cpu}" / name).read_text().strip() for cpu in range(14)]

    assert (cpus / "online").read_text() == "0-13\n"
    assert told("topology/physical_package_id") == [*"0000111"] * 2
    assert told("topology/core_id") == [*"0123012"] * 2
    assert told("topology/thread_siblings_list") == [f"{core},{core + 7}" for core in range(7)] * 2
    assert told("topology/thread_siblings")[13] == "00002040"
    assert told("topology/package_cpus_list")[6] == "4-6,11-13"
    assert told("cache/index3/shared_cpu_list")[0] == "0-3,7-10"


def test_masks_are_written_in_words_of_32_bits(tmp_path: Path) -> None:
    nodes = shown(tmp_path, CLX) / "sys/devices/system/node"
    assert (nodes / "node1/cpumap").read_text() == "00ffffff,f0000000\n"
    assert (nodes / "node1/cpulist").read_text() == "28-55\n"
    assert (nodes / "node1/distance").read_text() == "21 10\n"
    assert "MemTotal:        33554432 kB" in (nodes / "node0/meminfo").read_text()


def test_every_node_and_cpu_leads_to_the_other(tmp_path: Path) -> None:
    system = shown(tmp_path, CLX) / "sys/devices/system"
    assert (system / "cpu/cpu30/node1/cpulist").read_text() == "28-55\n"
    assert (system / "node/node0/cpu3/topology/core_id").read_text() == "3\n"


def test_cpuinfo_has_a_block_for_each_logical_processor(tmp_path: Path) -> None:
    blocks = (shown(tmp_path, KNL) / "proc/cpuinfo").read_text().strip().split("\n\n")
    assert len(blocks) == 272
    assert blocks[271].splitlines() == [
        "processor\t: 271",
        "model name\t: Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz",
        "physical id\t: 0",
        "siblings\t: 272",
        "core id\t: 67",
        "cpu cores\t: 68",
    ]


@pytest.mark.parametrize(("cores", "sockets", "threads"), [(1, 2, 1), (0, 0, 1), (4, 1, 0), (576, 2, 2)])
def test_what_cannot_be_claimed_is_a_usage_error(cores: int, sockets: int, threads: int) -> None:
    with pytest.raises(UsageError, match="invalid node"):
        Processors(cores, sockets, threads)
