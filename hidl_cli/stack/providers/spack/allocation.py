"""Building on a node that the scheduler gives, where the site wants that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hidl_cli import batch_systems
from hidl_cli.errors import MissingPrecondition

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site


def command(site: Site, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is put before the command that builds: nothing here, or inside an allocation already."""
    if site.spack.build_on == "login" or any(system.job_id in environ for system in batch_systems.systems()):
        return ()
    partition, policies = site.partition(site.spack.partition), site.policies
    time = policies.default_time or (partition.max_wall if partition else None)
    system = batch_systems.system(site.scheduler)
    if system is not None and system.interactive is not None:
        how = system.interactive
        name = (partition.queue if partition else None) or site.spack.partition or site.default_partition
        return (
            *how.command,
            *_option(how.queue, name if policies.partition != "never" else None),
            *_option(how.time, time if policies.time != "never" else None),
            *_option(how.qos, partition.qos if partition else None),
            *_option(how.constraint, partition.constraint if partition else None),
        )
    raise MissingPrecondition(
        f"site {site.name} builds in allocations (`spack.build_on`), and its scheduler gives none",
        hint="run hidl inside an allocation, or set `spack.build_on: login`",
    )


def _option(words: tuple[str, ...], value: str | None) -> list[str]:
    """Fill ``value`` in; a time has its hours and minutes beside: ``1-02:30:00`` -> 26 and 30."""
    if value is None:
        return []
    days, _, clock = value.rpartition("-")
    hours, minutes = [*clock.split(":"), ""][:2]
    total = str(int(days or 0) * 24 + int(hours)) if hours.isdecimal() else hours
    return [word.format(value, hours=total, minutes=minutes) for word in words]
