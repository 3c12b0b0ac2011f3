"""Cores that a process may use, and cores that its node provides for the job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hidl_workloads.doctor.node_probe import ROOT, groups, read

Core = tuple[int, int]
"""A core: its package (socket), and its number within."""

_TOPOLOGY = Path("/sys/devices/system/cpu")


def cores_of(processors: Iterable[int], topology: Path = _TOPOLOGY) -> frozenset[Core]:
    """Return the cores of logical processors. Without topology information, each processor counts as a core."""
    return frozenset(_core(processor, topology / f"cpu{processor}" / "topology") for processor in processors)


def of_the_node(root: Path = ROOT) -> frozenset[Core]:
    """Return the cores of the control group, or else all online cores; empty if unknown."""
    found: list[str] = []
    for group in groups(root, "cpuset"):
        found += [read(group / name) for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")]
    text = next(filter(None, [*found, read(root / "sys/devices/system/cpu/online")]), "")
    return cores_of(numbers(text), root / _TOPOLOGY.relative_to("/"))


def numbers(text: str) -> list[int]:
    """Parse a list of the kernel such as ``0-3,8``; empty if invalid."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError:
        return []
    return found


def _core(processor: int, directory: Path) -> Core:
    try:
        package, core = (int((directory / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return -1, processor
    return package, core
