"""All probes of one machine, and what they found together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import InvalidInput, SchedulerUnreachable
from hidl_cli.site.machine import Machine, machine
from hidl_cli.site.probes import cluster, fabric, flux, gpus, lscpu, lsf, mpi, pbs, slurm
from hidl_cli.site.probes.facts import Batch, Fact, Hardware, Installed, Library
from hidl_cli.site.probes.gpus import Cards
from hidl_cli.site.probes.host import Host
from hidl_cli.site.probes.recorded import RecordedHost

#: By the names of ``SYSTEMS``; the first that finds its programs describes the machine.
_PROBES = {"slurm": slurm.probe, "lsf": lsf.probe, "pbs": pbs.probe, "flux": flux.probe}

_UNKNOWN = Machine(arch="", cpu=None, sockets=None, cores=1, threads_per_core=None, memory_gib=None)


@dataclass(frozen=True)
class Found:
    """All that was found on one machine. ``launchers``: by name, where each lies on the PATH, or which file shows it.

    Of outputs that were saved by hand: ``read`` says which file tells what; ``described`` are the nodes of whose kind
    ``machine`` is, ``with_cards`` those of whose kind the one with ``cards`` is, and ``unknown_nodes`` what is known of
    nodes where the scheduler tells of none. The host has no name then.
    """

    hostname: str
    machine: Machine
    cards: Cards | None = None
    batch: Batch | None = None
    launchers: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    interconnect: Fact | None = None
    remarks: tuple[str, ...] = ()
    installed: tuple[Installed, ...] = ()
    read: tuple[str, ...] = ()
    described: frozenset[str] = frozenset()
    with_cards: frozenset[str] = frozenset()
    unknown_nodes: Hardware | None = None


def survey(host: Host, this: Machine | None = None, *, alone: bool = False) -> Found:
    """Ask every probe, but a scheduler where the machine is ``alone``; ``this``: the machine where it is known already.

    Raises ``SchedulerUnreachable`` where a scheduler's programs are here, but give no answer.
    """
    batch = None if alone else next(filter(None, (probe(host) for probe in _PROBES.values())), None)
    if batch and not batch.sources:
        program = SYSTEMS[batch.scheduler].shows
        raise SchedulerUnreachable(
            "; ".join(host.failures) or f"`{program}` did not respond",
            hint=f"run `{program}`, and try again; --alone drafts this machine without a scheduler",
        )
    return Found(
        hostname=host.hostname,
        machine=_this_machine(host, this),
        cards=gpus.probe(host),
        batch=batch,
        launchers=mpi.launchers(host),
        libraries=mpi.libraries(host),
        interconnect=fabric.probe(host),
        remarks=tuple(_other_schedulers(host, batch)),
    )


def survey_recorded(host: RecordedHost, *, alone: bool = False) -> Found:
    """Ask every probe about a recorded machine; ``alone`` and errors as in ``survey``.

    ``InvalidInput`` where neither a scheduler's answers nor the machine itself were recorded.
    """
    found = survey(host, host.machine or _UNKNOWN, alone=alone)
    if found.batch is None and host.machine is None:
        raise InvalidInput(
            f"{host.directory} does not say what machine it is",
            hint="record it with `hidl doctor --collect`, or add what a scheduler prints: scontrol-show-config.txt, "
            "scontrol-oneliner-show-node.txt, scontrol-oneliner-show-partition.txt; lsid.txt, bqueues-l.txt, ...",
        )
    return found


def _other_schedulers(host: Host, batch: Batch | None) -> Iterator[str]:
    """Say which schedulers the draft leaves out."""
    drafted = {SYSTEMS[name].title for name in _PROBES}
    for title, program in cluster.schedulers(host).items():
        if title not in drafted:
            yield f"{title} ({program}) is installed too, but hidl cannot draft a site from it"
        elif batch and title != SYSTEMS[batch.scheduler].title:
            yield f"{title} ({program}) is installed too; this draft describes {SYSTEMS[batch.scheduler].title}"


def _this_machine(host: Host, found: Machine | None = None) -> Machine:
    """The machine; ARM's kernel gives no model name, but ``lscpu`` decodes the part numbers."""
    found = found or machine()
    return found if found.cpu else replace(found, cpu=lscpu.fields(host.ask(*lscpu.JSON) or "").get(lscpu.MODEL))
