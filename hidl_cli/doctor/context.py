"""What is examined: a host, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hidl_cli.runs.plan import Plan
from hidl_cli.site.detect import conditions_of
from hidl_cli.site.probes.host import Host
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import Installation

_SUBMITS = {"slurm": "sbatch", "lsf": "bsub"}


@dataclass(frozen=True)
class Context:
    """Whom probes may ask, and what the rules judge by.

    ``host``: this machine, or a recorded one; what it could not tell stands in its ``failures``. ``stack``: the stack
    that was named; ``installation``: where it is installed, None where it is not, or none was named. ``plan``: the run
    that is about to be submitted; None where a person asks what is wrong. ``nodes``: how many compute nodes are to be
    examined; None: none. ``root``: where installations lie; None: where the site's file says, or the user's own place.
    """

    host: Host
    site: Site
    installation: Installation | None = None
    stack: str | None = None
    plan: Plan | None = None
    nodes: int | None = None
    root: Path | None = None

    @cached_property
    def is_here(self) -> bool:
        """Is this host part of the site, so that what is found on it says something of the site?

        By the site's ``match``; where it has none, by its scheduler: its command is here.
        """
        if conditions := conditions_of(self.site, self.host):
            return all(condition.holds for condition in conditions)
        if self.site.scheduler == "local":
            return True
        program = _SUBMITS.get(self.site.scheduler or "")
        return program is not None and self.host.which(program) is not None

    @property
    def is_active(self) -> bool:
        """Is the stack activated in the shell that hidl was called from?"""
        place = self.host.environment.get("VIRTUAL_ENV")
        return self.installation is not None and place == str(self.installation.prefix)
