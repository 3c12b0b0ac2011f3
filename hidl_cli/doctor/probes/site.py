"""What the scheduler and the modules of this machine say, to be held against the site's file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hidl_cli.doctor.context import Context
from hidl_cli.site.probes import lsf, modules, slurm
from hidl_cli.site.probes.facts import Node, Queue
from hidl_cli.site.probes.host import Host
from hidl_cli.site.schema import Site

_SECONDS = 10.0
_PROGRAMS = {"slurm": "scontrol", "lsf": "lsid"}
_ACCOUNTING = re.compile(r"^AccountingStorageType\s*= (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Counterpart:
    """The site's file, and the machine that it describes; where this is another one, the file alone.

    ``program``: of the scheduler, where it is missing; ``silence``: why the scheduler gives no answer. ``queues``,
    ``nodes`` and ``modules`` are None where nobody told. ``accounting``: Slurm's AccountingStorageType.
    """

    site: Site
    program: str | None = None
    silence: str | None = None
    queues: tuple[Queue, ...] | None = None
    nodes: tuple[Node, ...] | None = None
    accounting: str | None = None
    modules: frozenset[str] | None = None


def probe(context: Context) -> Counterpart:
    """Ask the scheduler and the modules."""
    site, host, scheduler = context.site, context.host, context.site.scheduler
    if not context.is_here or scheduler is None or scheduler == "local":
        return Counterpart(site)
    if host.which(_PROGRAMS[scheduler]) is None:
        return Counterpart(site, program=_PROGRAMS[scheduler])
    known = frozenset(modules.available(host) or ())
    return _slurm(site, host, known) if scheduler == "slurm" else _lsf(site, host, known)


def _slurm(site: Site, host: Host, known: frozenset[str]) -> Counterpart:
    """``scontrol ping`` says at once where nobody answers; other commands try for ten to twenty seconds."""
    ping = host.ask("scontrol", "ping", seconds=_SECONDS)
    if ping is None or " is UP" not in ping:
        said = (ping or "").strip().partition("\n")[0] or "scontrol ping gives no answer"
        return Counterpart(site, silence=said, modules=known or None)
    batch = slurm.probe(host)
    accounting = _ACCOUNTING.search(host.ask("scontrol", "show", "config", seconds=_SECONDS) or "")
    return Counterpart(
        site,
        queues=(batch.queues if batch else ()) or None,
        nodes=(batch.nodes if batch else ()) or None,
        accounting=accounting[1] if accounting else None,
        modules=known or None,
    )


def _lsf(site: Site, host: Host, known: frozenset[str]) -> Counterpart:
    """LSF tells which hosts there are, but not which of them a queue has."""
    batch = lsf.probe(host)
    if batch is None or not batch.sources:
        return Counterpart(site, silence="lsid gives no answer", modules=known or None)
    return Counterpart(site, queues=batch.queues or None, modules=known or None)
