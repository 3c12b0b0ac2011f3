"""The scheduler's name of the cluster that this host belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hidl_cli.site.probes.host import Host

SECONDS = 3.0  # scontrol waits three times as long where slurmctld is away
_COMMANDS = {"slurm": ("scontrol", "show", "config"), "lsf": ("lsid",)}
_NAMES = {
    "slurm": re.compile(r"^ClusterName\s*= (\S+)$", re.MULTILINE),
    "lsf": re.compile(r"^My cluster name is (\S+)\s*$", re.MULTILINE),
}
#: Programs that only one scheduler has, and what people call it.
PROGRAMS = {"scontrol": "Slurm", "lsid": "LSF", "pbsnodes": "PBS", "flux": "Flux", "qhost": "Grid Engine"}


@dataclass(frozen=True)
class Cluster:
    """The cluster's name, None where it is unknown; ``source``: who told it, or why it is unknown."""

    name: str | None
    source: str


def schedulers(host: Host) -> dict[str, str]:
    """The schedulers whose programs are on the PATH: what people call each, and that program."""
    return {name: program for program, name in PROGRAMS.items() if host.which(program)}


def cluster(host: Host) -> Cluster:
    """What ``$SLURM_CLUSTER_NAME`` says, which Slurm sets in jobs; else what ``scontrol`` or ``lsid`` says."""
    if name := host.environment.get("SLURM_CLUSTER_NAME"):
        return Cluster(name, "$SLURM_CLUSTER_NAME")
    unanswered = []
    for scheduler, command in _COMMANDS.items():
        if host.which(command[0]) is None:
            continue
        if found := _NAMES[scheduler].search(host.ask(*command, seconds=SECONDS) or ""):
            return Cluster(found[1], " ".join(command))
        unanswered.append(f"`{' '.join(command)}` gave no answer within {SECONDS:g} s")
    return Cluster(None, "; ".join(unanswered) or "no scheduler's program (scontrol, lsid) is on the PATH")
