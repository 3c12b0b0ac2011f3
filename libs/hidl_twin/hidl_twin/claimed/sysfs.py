"""The parts of /sys and /proc on processors that hwloc, lscpu, slurmd, glibc and hidl read.

The formats are those of Documentation/ABI/stable/sysfs-devices-system-{cpu,node} of Linux.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hidl_twin.claimed.processors import Processors

# level, type, KiB, ways, shared by: the usual sizes of a server's processor, for no site's file names them.
_CACHES = ((1, "Data", 32, 8, "core"), (1, "Instruction", 32, 8, "core"), (2, "Unified", 1024, 16, "core"))
_LAST_LEVEL = (3, "Unified", 32768, 16, "socket")
_LINE = 64  # bytes


def write_cpu_tree(directory: Path, claimed: Processors) -> None:
    """Write /sys/devices/system/cpu."""
    write = _Writer()
    groups = _groups(claimed)
    everything = _list(range(claimed.cpus))
    write(
        directory,
        {
            "online": everything,
            "possible": everything,
            "present": everything,
            "offline": "",
            "isolated": "",
            "kernel_max": str(claimed.cpus - 1),
            "smt/active": str(int(claimed.threads_per_core > 1)),
            "smt/control": "on" if claimed.threads_per_core > 1 else "notsupported",
        },
    )
    texts = {
        kind: {first: (_mask(members, claimed.cpus), _list(members)) for first, members in of_kind.items()}
        for kind, of_kind in groups.items()
    }
    for cpu in range(claimed.cpus):
        place = directory / f"cpu{cpu}"
        core, socket = claimed.core(cpu), claimed.socket(cpu)
        of_core, of_socket = texts["core"][core], texts["socket"][socket]
        files = {
            "topology/core_id": str(claimed.core_in_socket(cpu)),
            "topology/physical_package_id": str(socket),
            "topology/die_id": "0",
        }
        for name, (mask, listed) in {
            "thread_siblings": of_core,
            "core_cpus": of_core,
            "core_siblings": of_socket,
            "package_cpus": of_socket,
            "die_cpus": of_socket,
        }.items():
            files |= {f"topology/{name}": mask, f"topology/{name}_list": listed}
        for index, (level, kind, size, ways, shared_by) in enumerate((*_CACHES, _LAST_LEVEL)):
            mask, listed = of_core if shared_by == "core" else of_socket
            files |= {
                f"cache/index{index}/{name}": value
                for name, value in {
                    "level": str(level),
                    "type": kind,
                    "size": f"{size}K",
                    "id": str(core if shared_by == "core" else socket),
                    "coherency_line_size": str(_LINE),
                    "ways_of_associativity": str(ways),
                    "number_of_sets": str(size * 1024 // _LINE // ways),
                    "physical_line_partition": "1",
                    "shared_cpu_map": mask,
                    "shared_cpu_list": listed,
                }.items()
            }
        write(place, files)
        (place / f"node{socket}").symlink_to(f"../../node/node{socket}")


def write_node_tree(directory: Path, claimed: Processors, memory_kib: int) -> None:
    """Write /sys/devices/system/node: a NUMA node per socket, which share the memory."""
    write = _Writer()
    everything = _list(range(claimed.sockets))
    names = ("online", "possible", "has_cpu", "has_memory", "has_normal_memory")
    write(directory, dict.fromkeys(names, everything))
    share = memory_kib // claimed.sockets
    for socket, members in _groups(claimed)["socket"].items():
        place = directory / f"node{socket}"
        write(
            place,
            {
                "cpulist": _list(members),
                "cpumap": _mask(members, claimed.cpus),
                "distance": " ".join("10" if other == socket else "21" for other in range(claimed.sockets)),
                "meminfo": f"Node {socket} MemTotal: {share:>15} kB\nNode {socket} MemFree: {share:>16} kB",
                "numastat": "numa_hit 0\nnuma_miss 0",
            },
        )
        for cpu in members:
            (place / f"cpu{cpu}").symlink_to(f"../../cpu/cpu{cpu}")


def write_limits(directory: Path, claimed: Processors) -> None:
    """Write a control group (version 2) without limits."""
    every_cpu, every_node = _list(range(claimed.cpus)), _list(range(claimed.sockets))
    names = {"cpuset.cpus.effective": every_cpu, "cpuset.mems.effective": every_node, "cpu.max": "max 100000"}
    _Writer()(directory, names)


def cpuinfo(real: str, claimed: Processors) -> str:
    """/proc/cpuinfo of a node, from the entry of this machine's first processor (``real``)."""
    block = real.split("\n\n", 1)[0].rstrip("\n")
    if claimed.model:
        block = re.sub(r"(?m)^(model name|cpu)(\s*:).*$", lambda found: f"{found[1]}{found[2]} {claimed.model}", block)
    blocks = []
    for cpu in range(claimed.cpus):
        facts = {
            "processor": cpu,
            "physical id": claimed.socket(cpu),
            "core id": claimed.core_in_socket(cpu),
            "apicid": cpu,
            "initial apicid": cpu,
            "siblings": claimed.largest_socket * claimed.threads_per_core,
            "cpu cores": claimed.largest_socket,
        }
        told = block
        for name, value in facts.items():
            told = re.sub(rf"(?m)^({name}\s*:).*$", rf"\g<1> {value}", told)
        blocks.append(told + "\n\n")
    return "".join(blocks)


def _groups(claimed: Processors) -> dict[str, dict[int, list[int]]]:
    """The logical processors of each core and of each socket."""
    groups: dict[str, dict[int, list[int]]] = {"core": {}, "socket": {}}
    for cpu in range(claimed.cpus):
        groups["core"].setdefault(claimed.core(cpu), []).append(cpu)
        groups["socket"].setdefault(claimed.socket(cpu), []).append(cpu)
    return groups


def _list(numbers: Iterable[int]) -> str:
    """As the kernel prints a list of processors: 0-27,56-83."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _mask(numbers: Iterable[int], width: int) -> str:
    """As the kernel prints a mask of processors: words of 32 bits in hexadecimal, the highest first."""
    bits = sum(1 << number for number in numbers)
    words = [f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in range(-(-width // 32))]
    return ",".join(reversed(words))


class _Writer:
    """Write files; equal texts are hard links, as there are thousands of them."""

    def __init__(self) -> None:
        self._written: dict[str, Path] = {}

    def __call__(self, directory: Path, files: dict[str, str]) -> None:
        for parent in {(directory / name).parent for name in files}:
            parent.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            file = directory / name
            if (same := self._written.get(text)) is not None:
                file.hardlink_to(same)
            else:
                file.write_text(text + "\n", encoding="ascii")
                self._written[text] = file
