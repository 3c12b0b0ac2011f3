"""Limits that control groups (v1 and v2) set for this process: containers, batch jobs and login nodes use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MOUNTS = "sys/fs/cgroup"
_V1_DIRECTORIES = {"cpu": ("cpu", "cpu,cpuacct"), "memory": ("memory",)}


def cpu_quota(root: Path) -> float | None:
    """The processors' worth of time that this process may use per unit of time; None where it is not limited."""
    quotas = []
    for group in _groups(root, "cpu"):
        limit, *period = (read(group / "cpu.max") or "max").split()
        quotas.append(_ratio(limit, period[0] if period else ""))
        quotas.append(_ratio(read(group / "cpu.cfs_quota_us"), read(group / "cpu.cfs_period_us")))
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(root: Path) -> int | None:
    """The bytes of memory that this process may use; None where they are not limited."""
    limits = []
    for group in _groups(root, "memory"):
        limits += [_positive(read(group / name)) for name in ("memory.max", "memory.limit_in_bytes")]
    return min((limit for limit in limits if limit is not None), default=None)


def read(path: Path) -> str:
    """The text of a small file of the kernel, without the spaces around it; empty where there is no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of the groups that this process is in, each with its ancestors, in either version.

    In a container the path may be that of the host, and name nothing below the container's mount; the mount itself is
    then the container's group.
    """
    for line in read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts = [root / _MOUNTS, root / _MOUNTS / "unified"]
        elif controller in controllers.split(","):
            mounts = [root / _MOUNTS / name for name in _V1_DIRECTORIES[controller]]
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        yield from (mount / group for mount in mounts for group in (inside, *inside.parents))


def _ratio(limit: str, period: str) -> float | None:
    microseconds, per = _positive(limit), _positive(period)
    return microseconds / per if microseconds and per else None


def _positive(text: str) -> int | None:
    """The number, or None for ``max``, -1, and a file that is not there."""
    return int(text) if text.isdecimal() and int(text) > 0 else None
