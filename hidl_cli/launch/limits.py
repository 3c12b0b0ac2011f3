"""What a site admits: the limits of its partitions, held against what a run asks for before anybody is asked."""

from __future__ import annotations

from hidl_cli.errors import SubmitRefused, UsageError
from hidl_cli.site.schema import Partition, Site

_HOUR = 3600.0


def check_nodes(site: Site, name: str | None, nodes: int) -> None:
    """Raise ``UsageError`` for an unknown partition, ``SubmitRefused`` where a job of so many nodes is not admitted."""
    if name is not None and name not in site.partitions:
        known = ", ".join(site.partitions) or "none"
        raise UsageError(f"site {site.name} has no partition {name!r}", hint=f"its partitions: {known}")
    partition = site.partition(name)
    if partition is None:
        return
    if nodes < partition.min_nodes or (partition.max_nodes is not None and nodes > partition.max_nodes):
        raise SubmitRefused(
            f"{nodes} node(s) asked for; partition {name or site.default_partition} of site {site.name} "
            f"admits {partition.min_nodes} to {partition.max_nodes or 'any number of'} node(s) in a job",
            hint=_elsewhere(site, nodes) or "ask for fewer nodes, or for more ranks on each (--ranks-per-node)",
        )


def longest(partition: Partition | None, nodes: int) -> float | None:
    """The longest run time of a job of so many nodes, in seconds; None where it is not known."""
    if partition is None:
        return None
    for limit in partition.max_wall_by_nodes:
        if limit.max_nodes is None or nodes <= limit.max_nodes:
            return seconds(limit.max_wall)
    return None if partition.max_wall is None else seconds(partition.max_wall)


def time_limit(site: Site, name: str | None, nodes: int, asked: float | None) -> float | None:
    """The time limit of a job in seconds: as asked, else the site's default, else an hour or what is admitted.

    None where the machine itself is the allocation and nothing was asked for. Raises ``SubmitRefused`` where more is
    asked for than the partition admits.
    """
    most = longest(site.partition(name), nodes)
    if asked is not None and most is not None and asked > most:
        raise SubmitRefused(
            f"{clock(asked)} asked for; partition {name or site.default_partition} of site {site.name} admits "
            f"{clock(most)} for a job of {nodes} node(s)",
            hint=f"--time {clock(most)} or less, or another partition (hidl site show {site.name})",
        )
    if asked is not None or site.scheduler == "local":
        return asked
    if site.policies.default_time is not None:
        return seconds(site.policies.default_time)
    return _HOUR if most is None else min(_HOUR, most)


def seconds(wall: str) -> float:
    """Read a ``WallTime``, ``[days-]hours:minutes:seconds``."""
    days, _, clock = wall.rpartition("-")
    hours, minutes, secs = (int(part) for part in clock.split(":"))
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs)


def clock(seconds: float) -> str:
    """``hours:minutes:seconds``, hours as many as there are."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _elsewhere(site: Site, nodes: int) -> str | None:
    """The partitions that admit a job of so many nodes, as a hint."""
    fitting = [
        name
        for name, partition in site.partitions.items()
        if partition.min_nodes <= nodes and (partition.max_nodes is None or nodes <= partition.max_nodes)
    ]
    return f"these admit it: {', '.join(fitting)} (--partition)" if fitting else None
