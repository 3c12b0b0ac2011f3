"""What is examined: a host, a site, a stack, a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hidl_cli import batch_systems
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.site.detect import conditions_of
from hidl_cli.site.probes.facts import Batch
from hidl_cli.site.probes.host import Host
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation as installations
from hidl_cli.stack.installation import Installation


@dataclass(frozen=True)
class Context:
    """The input of probes.

    ``host``: this machine, or a recorded one; its ``failures`` list commands that failed. ``stack``: its name;
    ``installation``: None if it is not installed, or no stack is named. ``plan``: the run about to be submitted, None
    for ``hidl doctor``. ``nodes``: number of compute nodes to examine, None for none. ``roots``: directories of
    installations, none of them: the user's and the site's. ``deep``: read every file of the installation.
    ``saved``: the site's scheduler as outputs describe it that somebody saved, instead of the host's.
    """

    host: Host
    site: Site
    installation: Installation | None = None
    stack: str | None = None
    plan: Plan | None = None
    nodes: int | None = None
    roots: tuple[Path, ...] = ()
    deep: bool = False
    saved: Batch | None = None

    @cached_property
    def is_here(self) -> bool:
        """Whether this host is part of the site: by the site's ``match``, else by its scheduler's command."""
        if self.saved is not None:
            return True
        if conditions := conditions_of(self.site, self.host):
            return all(condition.holds for condition in conditions)
        if self.site.scheduler == "local":
            return True
        system = batch_systems.system(self.site.scheduler)
        return system is not None and self.host.which(system.submit) is not None

    @property
    def gpus(self) -> int | None:
        """GPUs of each node; 0 if the plan computes on processors, None if unknown."""
        if self.plan is not None and self.plan.device == "cpu":
            return 0
        return self.site.node_type(self.plan.partition if self.plan else None).gpus

    @property
    def is_active(self) -> bool:
        """Whether the stack is activated in the shell that started hidl."""
        place = self.host.environment.get("VIRTUAL_ENV")
        return self.installation is not None and place == str(self.installation.prefix)


def stack_directories(roots: Iterable[Path], site: str, stack: str | None = None) -> list[Path]:
    """The directories below ``roots`` of the site's stacks, or of one, that have any installation, complete or not."""
    places = [root / site for root in roots]
    found = [directory for place in places if place.is_dir() for directory in sorted(place.iterdir())]
    return [each for each in found if stack in (None, each.name) and installations.prefixes(each)]
