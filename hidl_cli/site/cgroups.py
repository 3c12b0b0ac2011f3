"""Limits that control groups (v1 and v2) set for this process: containers, batch jobs and login nodes use them."""

from __future__ import annotations

from pathlib import Path

from hidl_workloads.doctor.node_probe import groups, memory_limit, number, read

__all__ = ["cpu_quota", "memory_limit", "read"]


def cpu_quota(root: Path) -> float | None:
    """The processors' worth of time that this process may use per unit of time; None where it is not limited."""
    quotas = []
    for group in groups(root, "cpu"):
        limit, *period = (read(group / "cpu.max") or "max").split()
        quotas.append(_ratio(limit, period[0] if period else ""))
        quotas.append(_ratio(read(group / "cpu.cfs_quota_us"), read(group / "cpu.cfs_period_us")))
    return min((quota for quota in quotas if quota is not None), default=None)


def _ratio(limit: str, period: str) -> float | None:
    microseconds, per = number(limit), number(period)
    return microseconds / per if microseconds and per else None
