"""The scheduler's name of the cluster that this host belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hidl_cli.batch_systems import systems
from hidl_cli.site.probes.host import Host

SECONDS = 3.0  # scontrol waits three times as long where slurmctld is away
#: Programs that only one scheduler has, of schedulers that hidl cannot submit to.
_OTHERS = {"Grid Engine": "qhost"}


@dataclass(frozen=True)
class Cluster:
    """The cluster's name, None where it is unknown; ``source``: where it is from, or why it is unknown."""

    name: str | None
    source: str


def schedulers(host: Host) -> dict[str, str]:
    """Return the schedulers whose programs are on the PATH: the title of each, and that program."""
    known = {system.title: system.shows for system in systems() if system.shows} | _OTHERS
    return {title: program for title, program in known.items() if host.which(program)}


def cluster(host: Host) -> Cluster:
    """Find the name: from a variable that the scheduler sets in jobs, else from a command of the scheduler."""
    for system in systems():
        if system.cluster_variable and (name := host.environment.get(system.cluster_variable)):
            return Cluster(name, f"${system.cluster_variable}")
    unanswered, recognizable = [], [system for system in systems() if system.shows]
    for system in recognizable:
        if host.which(system.shows) is None:
            continue
        command = " ".join(system.cluster_command)
        answer = host.ask(*system.cluster_command, seconds=SECONDS) or ""
        if found := re.search(system.cluster_name, answer, re.MULTILINE):
            return Cluster(found[1], command)
        unanswered.append(f"`{command}` did not respond within {SECONDS:g} s")
    programs = ", ".join(system.shows for system in recognizable)
    return Cluster(None, "; ".join(unanswered) or f"no scheduler's program ({programs}) on PATH")
