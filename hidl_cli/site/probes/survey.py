"""All probes of one machine, and what they found together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hidl_cli.errors import SchedulerUnreachable
from hidl_cli.site.machine import Machine
from hidl_cli.site.probes import cluster, fabric, gpus, lsf, machine, mpi, slurm
from hidl_cli.site.probes.facts import Batch, Fact, Library
from hidl_cli.site.probes.gpus import Cards
from hidl_cli.site.probes.host import Host

_SPOKEN = ("Slurm", "LSF")


@dataclass(frozen=True)
class Found:
    """All that was found on one machine. ``launchers``: by name, where each lies on the PATH."""

    hostname: str
    machine: Machine
    cards: Cards | None = None
    batch: Batch | None = None
    launchers: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    interconnect: Fact | None = None
    remarks: tuple[str, ...] = ()


def survey(host: Host, this: Machine | None = None, *, alone: bool = False) -> Found:
    """Ask every probe, but a scheduler where the machine is ``alone``; ``this``: the machine where it is known already.

    Raises ``SchedulerUnreachable`` where a scheduler's programs are here, but give no answer.
    """
    batch = None if alone else slurm.probe(host) or lsf.probe(host)
    if batch and not batch.sources:
        program = "scontrol" if batch.scheduler == "slurm" else "lsid"
        raise SchedulerUnreachable(
            "; ".join(host.failures) or f"`{program}` gives no answer",
            hint=f"see what `{program}` says, and try again; --alone drafts this machine without a scheduler",
        )
    others = [f"{name} ({program})" for name, program in cluster.schedulers(host).items() if name not in _SPOKEN]
    return Found(
        hostname=host.hostname,
        machine=machine.probe(host, this),
        cards=gpus.probe(host),
        batch=batch,
        launchers=mpi.launchers(host),
        libraries=mpi.libraries(host),
        interconnect=fabric.probe(host),
        remarks=tuple(f"{other} is here too, but hidl does not speak to it" for other in others),
    )
