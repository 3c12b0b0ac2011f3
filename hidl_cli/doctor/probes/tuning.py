"""The tuning that ranks get: what hidl gives them, and what the user's shell carries on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes import job
from hidl_cli.doctor.probes.gpus import wants_device_buffers
from hidl_cli.doctor.probes.job import Job
from hidl_cli.site.probes.host import Host
from hidl_cli.tuning.layers import LD_PRELOAD

#: Names of run-time variables of MPI libraries begin so.
PREFIXES = ("MV2_", "MVP_", "MPIR_CVAR_", "OMPI_MCA_")
#: Names the library of GDRCopy.
GDRCOPY = "MV2_GPUDIRECT_GDRCOPY_LIB"

_ADAPTERS = "/sys/class/infiniband"
_INTERFACES = "/sys/class/net"


@dataclass(frozen=True)
class Tuning:
    """Variables and what they name.

    ``gpus``: of a node, None where that is unknown; ``device_buffers``: the planned program hands memory of GPUs to
    MPI. ``adapters`` are the names below /sys/class/infiniband, ``interfaces`` those below /sys/class/net; None:
    unknown. ``missing``: by variable, the libraries that it names and that are not here. ``on_this_host``: ranks run
    on this very machine.
    """

    job: Job
    gpus: int | None = None
    device_buffers: bool = False
    adapters: tuple[str, ...] | None = None
    interfaces: tuple[str, ...] | None = None
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    on_this_host: bool = True

    @property
    def shell(self) -> dict[str, str]:
        """The run-time variables of MPI libraries that the shell has set, and hidl has not."""
        return {name: value for name, value in self.job.carried.items() if name.startswith(PREFIXES)}


def probe(context: Context) -> Tuning:
    """The tuning of the job; files and adapters as this host has them, if it is part of the site."""
    one, host = job.probe(context), context.host
    plan = context.plan
    return Tuning(
        job=one,
        gpus=context.site.node_type(plan.partition if plan else None).gpus,
        device_buffers=plan is not None and wants_device_buffers(plan),
        adapters=host.list(_ADAPTERS) if context.is_here else None,
        interfaces=host.list(_INTERFACES) if context.is_here else None,
        missing=_missing(host, one) if context.is_here else {},
        on_this_host=context.site.scheduler == "local",
    )


def _missing(host: Host, one: Job) -> dict[str, tuple[str, ...]]:
    environment = one.environment
    named = {
        GDRCOPY: [environment.get(GDRCOPY, "")],
        LD_PRELOAD: environment.get(LD_PRELOAD, "").replace(os.pathsep, " ").split(),
    }
    missing = {name: tuple(file for file in files if _is_missing(host, file)) for name, files in named.items()}
    return {name: files for name, files in missing.items() if files}


def _is_missing(host: Host, file: str) -> bool:
    """A path that leads nowhere; a bare name is looked up by the dynamic linker, in places of its own."""
    path = PurePosixPath(file)
    return path.is_absolute() and "$" not in file and path.name not in host.list(str(path.parent))
