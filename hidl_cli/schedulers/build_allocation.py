"""Run builds in a new allocation, for sites that forbid them on login nodes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hidl_cli import batch_systems
from hidl_cli.batch_systems import BuildJob
from hidl_cli.errors import MissingPrecondition, SubmitRefused
from hidl_cli.launch import placement
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.launch.placement import Placement, allocate, bind_to_cores, missing
from hidl_cli.schedulers import scheduler
from hidl_cli.schedulers.backend import options

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site

#: Maximum time in seconds that a build requests if the user does not specify one. Longer jobs wait longer in the queue.
_LONGEST_BUILD = 12 * 3600.0


def build_job(site: Site, environ: Mapping[str, str], job: AllocationOptions) -> BuildJob | None:
    """Return the job that runs a build in an allocation of one whole node.

    Returns None if the site builds on its login nodes, or if this process already runs in an allocation. The name of
    the job is unique, because the job is cancelled by its name: its id is unknown while it waits in the queue.

    Args:
        site: The site, whose policies apply.
        environ: This process's environment.
        job: Job options. The partition defaults to ``spack.partition``. The time limit defaults to the partition's
            maximum, but at most 12 hours unless the site's default time is longer.

    Raises:
        MissingPrecondition: The scheduler cannot run commands in new allocations.
        SubmitRefused: An option that the site requires is missing.
    """
    if site.spack.build_on == "login" or any(system.job_id in environ for system in batch_systems.systems()):
        return None
    system = batch_systems.system(site.scheduler)
    if system is None or system.attached is None:
        raise MissingPrecondition(
            f"site {site.name} builds in an allocation (`spack.build_on`), but its scheduler cannot "
            "run commands in an allocation",
            hint="run hidl inside an allocation, or set `spack.build_on: login`",
        )
    partition = job.partition or site.spack.partition
    time = job.time_limit
    if time is None:
        usual = placement.time_limit(site, partition, 1, None) or 0.0
        time = max(usual, min(placement.longest(site.partition(partition), 1) or 0.0, _LONGEST_BUILD)) or None
    placements = bind_to_cores(site, [Placement.of_nodes(1, 1)], partition=partition)
    wanted = replace(job, partition=partition, time=time, gpus_per_node=0)
    name = f"hidl-build-{secrets.token_hex(4)}"
    allocation = allocate(site, name, placements, wanted)
    if lacking := missing(site.policies, allocation):
        raise SubmitRefused(
            f"site {site.name} requires {' and '.join(lacking)} for build jobs", hint=f"add {lacking[0]} NAME"
        )
    header = scheduler(system.name).header(allocation, site.policies)
    attached = system.attached
    command = (*attached.command, *options(header, attached.begin, without=attached.left_out))
    return BuildJob(command, ("sh", "-c", attached.cancel, "sh", name))
