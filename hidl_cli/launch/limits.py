"""Limits of a site's partitions, checked before anything is submitted."""

from __future__ import annotations

import re

from hidl_cli import batch_systems
from hidl_cli.errors import SubmitRefused, UsageError
from hidl_cli.inputs.fields import PATTERN_OF_TIMES
from hidl_cli.site.schema import Partition, Site

_UNKNOWN = 30 * 86400.0
_HOUR = 3600.0
_TIMES = "Slurm's forms: 90 (minutes), 15:00 (minutes:seconds), 02:00:00, 1-12 (days-hours) or 1-12:30:00"


def check_nodes(site: Site, name: str | None, nodes: int) -> None:
    """Raise ``UsageError`` for an unknown partition, ``SubmitRefused`` if it does not allow so many nodes."""
    if name is not None and name not in site.partitions:
        known = ", ".join(site.partitions) or "none"
        raise UsageError(f"site {site.name} has no partition {name!r}", hint=f"its partitions: {known}")
    partition = site.partition(name)
    if partition is None:
        return
    if nodes < partition.min_nodes or (partition.max_nodes is not None and nodes > partition.max_nodes):
        raise SubmitRefused(
            f"{_nodes(nodes)} requested; partition {name or site.default_partition} of site {site.name} "
            f"allows {_allowed(partition)} in a job",
            hint=_elsewhere(site, nodes) or "request fewer nodes, or more ranks per node (--ranks-per-node)",
        )


def longest(partition: Partition | None, nodes: int) -> float | None:
    """Return the longest run time of a job of ``nodes`` nodes, in seconds; None if unknown."""
    if partition is None:
        return None
    for limit in partition.max_wall_by_nodes:
        if limit.max_nodes is None or nodes <= limit.max_nodes:
            return seconds(limit.max_wall)
    return None if partition.max_wall is None else seconds(partition.max_wall)


def longest_job(site: Site) -> float:
    """Return the longest run time of any job of the site, in seconds: 0 without a queue, 30 days if unknown."""
    if not _has_time_limits(site):
        return 0.0
    found = [
        [*filter(None, [partition.max_wall]), *(limit.max_wall for limit in partition.max_wall_by_nodes)]
        for partition in site.partitions.values()
    ]
    return max((seconds(text) for texts in found for text in texts), default=_UNKNOWN) if all(found) else _UNKNOWN


def time_limit(site: Site, name: str | None, nodes: int, asked: float | None) -> float | None:
    """Return the time limit of a job in seconds: as requested, else the site's default, else an hour or the maximum.

    None if none is requested and nobody else waits: on this machine and on hosts without a queue. Raises
    ``SubmitRefused`` if more is requested than the partition allows.
    """
    most = longest(site.partition(name), nodes)
    if asked is not None and most is not None and asked > most:
        raise SubmitRefused(
            f"{clock(asked)} requested; partition {name or site.default_partition} of site {site.name} allows "
            f"{clock(most)} for a job of {nodes} node(s)",
            hint=f"--time {clock(most)} or less, or another partition (hidl site show {site.name})",
        )
    if asked is not None or not _has_time_limits(site):
        return asked
    if site.policies.default_time is not None:
        return seconds(site.policies.default_time)
    return _HOUR if most is None else min(_HOUR, most)


def _allowed(partition: Partition) -> str:
    """Describe how many nodes a job may have."""
    fewest, most = partition.min_nodes, partition.max_nodes
    if most is None:
        return f"{_nodes(fewest)} or more"
    return f"{fewest} to {_nodes(most)}" if fewest < most else _nodes(most)


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _has_time_limits(site: Site) -> bool:
    system = batch_systems.system(site.scheduler)
    return system is not None and system.time_limits


def seconds(text: str) -> float:
    """Read a time in one of Slurm's forms (sbatch(1), ``--time``), so that ``10`` is ten minutes.

    ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds``, ``days-hours``, ``days-hours:minutes`` or
    ``days-hours:minutes:seconds``. ``UsageError`` for anything else.
    """
    if not re.fullmatch(PATTERN_OF_TIMES, text):
        raise UsageError(f"invalid time {text!r}", hint=_TIMES)
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, minutes, secs = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, secs = parts
    else:
        hours, minutes, secs = [0, *parts, 0][:3]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs)


def limit_from(text: str) -> float:
    """Return the time limit that ``--time`` requests, in seconds; ``UsageError`` for an invalid one, and for none."""
    if (limit := seconds(text)) == 0:
        raise UsageError("the time limit must be positive", hint=_TIMES)
    return limit


def clock(seconds: float) -> str:
    """Format a time as ``hours:minutes:seconds``; hours may exceed 24."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _elsewhere(site: Site, nodes: int) -> str | None:
    """A hint with the partitions that allow a job of ``nodes`` nodes."""
    fitting = [
        name
        for name, partition in site.partitions.items()
        if partition.min_nodes <= nodes and (partition.max_nodes is None or nodes <= partition.max_nodes)
    ]
    return f"these partitions allow it: {', '.join(fitting)} (--partition)" if fitting else None
