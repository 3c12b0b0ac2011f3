"""Building on a node that the scheduler gives, where the site wants that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hidl_cli.errors import MissingPrecondition

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site

_INSIDE = ("SLURM_JOB_ID", "LSB_JOBID")


def command(site: Site, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What is put before the command that builds: nothing here, or inside an allocation already."""
    if site.spack.build_on == "login" or any(name in environ for name in _INSIDE):
        return ()
    partition = site.partition(site.spack.partition)
    name = (partition.queue if partition else None) or site.spack.partition or site.default_partition
    time = site.policies.default_time or (partition.max_wall if partition else None)
    if site.scheduler == "slurm":
        words = ["srun", "--nodes=1", "--ntasks=1"]
        words += [f"--partition={name}"] if name and site.policies.partition != "never" else []
        words += [f"--time={time}"] if time and site.policies.time != "never" else []
        words += [f"--qos={partition.qos}"] if partition and partition.qos else []
        words += [f"--constraint={partition.constraint}"] if partition and partition.constraint else []
        return tuple(words)
    if site.scheduler == "lsf":
        words = ["bsub", "-I", "-nnodes", "1"]
        words += ["-q", name] if name and site.policies.partition != "never" else []
        words += ["-W", _hours_and_minutes(time)] if time else []
        return tuple(words)
    raise MissingPrecondition(
        f"site {site.name} builds in allocations (`spack.build_on`), and its scheduler gives none",
        hint="run hidl inside an allocation, or set `spack.build_on: login`",
    )


def _hours_and_minutes(time: str) -> str:
    """``1-02:30:00`` -> ``26:30``."""
    days, _, clock = time.rpartition("-")
    hours, minutes, _ = clock.split(":")
    return f"{int(days or 0) * 24 + int(hours)}:{minutes}"
