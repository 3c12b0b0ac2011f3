"""Detect the resources of this machine that the current process may use.

All functions read below ``root``, which is ``/`` except in tests. Unknown facts are None.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import process
from hidl_cli.errors import ProcessFailed
from hidl_workloads.doctor.node_probe import groups, memory_limit, read
from hidl_workloads.doctor.node_probe import number as whole_number

__all__ = ["cpu_quota", "memory_limit", "read"]


def cpu_quota(root: Path) -> float | None:
    """Return the CPU time that this process may use, as a number of processors, or None if it is unlimited."""
    quotas = []
    for group in groups(root, "cpu"):
        limit, *period = (read(group / "cpu.max") or "max").split()
        quotas.append(_ratio(limit, period[0] if period else ""))
        quotas.append(_ratio(read(group / "cpu.cfs_quota_us"), read(group / "cpu.cfs_period_us")))
    return min((quota for quota in quotas if quota is not None), default=None)


def _ratio(limit: str, period: str) -> float | None:
    microseconds, per = whole_number(limit), whole_number(period)
    return microseconds / per if microseconds and per else None


_ROOT = Path("/")
_QUERY = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
_QUERY_SECONDS = 5.0
_NO_DRIVER, _NO_DEVICE = 9, 6  # nvidia-smi exit statuses (section "Return value" in its manual)


@dataclass(frozen=True)
class Machine:
    """The resources of this machine that a process may use. The fields match those of a node type."""

    arch: str
    cpu: str | None
    sockets: int | None
    cores: int
    threads_per_core: int | None
    memory_gib: float | None


@dataclass(frozen=True)
class LocalGpus:
    """This machine's GPUs. ``reason`` explains why their number is unknown."""

    gpus: int | None
    gpu_model: str | None = None
    reason: str | None = None


def machine(root: Path = _ROOT, *, processors: Iterable[int] | None = None) -> Machine:
    """Detect everything except GPUs within a few milliseconds. ``processors`` replaces this process's CPU affinity."""
    usable = sorted(affinity() if processors is None else processors)
    cores, sockets, threads = _topology(root, usable)
    quota = cpu_quota(root)
    if quota is not None:
        cores = max(1, min(cores, int(quota)))
    return Machine(os.uname().machine, cpu_model(root), sockets, cores, threads, memory_gib(root))


def affinity() -> set[int]:
    """Return the logical processors that this process may run on, given its CPU set and affinity."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cpu_model(root: Path) -> str | None:
    """Return the processor's model name (``model name`` on x86, ``cpu`` on POWER); ARM systems have none."""
    try:
        with (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:  # the first processor represents all of them
                if found := re.match(r"(?:model name|cpu)\s*:\s*(.*\S)", line):
                    return found[1]
    except OSError:
        pass
    return None


def memory_gib(root: Path) -> float | None:
    """Return the machine's memory or the limit of this process's control group, whichever is less, in GiB."""
    sizes = []
    if found := re.search(r"^MemTotal:\s*(\d+) kB", read(root / "proc/meminfo"), re.MULTILINE):
        sizes.append(int(found[1]) * 1024)
    if (limit := memory_limit(root)) is not None:
        sizes.append(limit)
    return round(min(sizes) / 2**30, 2) if sizes else None


def gpus(root: Path = _ROOT, environment: Mapping[str, str] = os.environ) -> LocalGpus:
    """List NVIDIA GPUs with nvidia-smi, if it is on the PATH, with a timeout of 5 seconds."""
    if shutil.which(_QUERY[0], path=environment.get("PATH")) is None:
        return LocalGpus(0)
    try:
        output = process.run(_QUERY, env=environment, timeout=_QUERY_SECONDS).stdout
    except ProcessFailed as error:
        no_driver = error.status == _NO_DRIVER and not (root / "proc/driver/nvidia").exists()
        if no_driver or error.status == _NO_DEVICE:
            return LocalGpus(0)
        return LocalGpus(None, reason=f"{error.message}: {' '.join(error.output.split())}")
    models = [line.strip() for line in output.splitlines() if line.strip() and "No devices" not in line]
    return LocalGpus(len(models), ", ".join(dict.fromkeys(models)) or None)


def _topology(root: Path, processors: list[int]) -> tuple[int, int | None, int | None]:
    """Return the number of physical cores, sockets and hardware threads per core for these logical processors.

    The number of sockets is None if they differ in usable cores, because hidl assumes equally many cores per socket.
    """
    cores: dict[str, int] = {}
    sockets: dict[str, set[str]] = {}
    for number in processors:
        directory = root / f"sys/devices/system/cpu/cpu{number}/topology"
        siblings, package = read(directory / "thread_siblings_list"), read(directory / "physical_package_id")
        if not siblings or not package:
            return len(processors), None, None
        cores[siblings] = cores.get(siblings, 0) + 1
        sockets.setdefault(package, set()).add(siblings)
    even = len({len(found) for found in sockets.values()}) == 1
    return len(cores), len(sockets) if even else None, max(cores.values())
