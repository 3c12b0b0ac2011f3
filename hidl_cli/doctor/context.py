"""What is examined: a host, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass

from hidl_cli.runs.plan import Plan
from hidl_cli.site.probes.host import Host
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import Installation


@dataclass(frozen=True)
class Context:
    """Whom probes may ask, and what the rules judge by.

    ``host``: this machine, or a recorded one; what it could not tell stands in its ``failures``. ``stack``: the stack
    that was named; ``installation``: where it is installed, None where it is not, or none was named. ``plan``: the run
    that is about to be submitted; None where a person asks what is wrong. ``nodes``: how many compute nodes are to be
    examined; None: none.
    """

    host: Host
    site: Site
    installation: Installation | None = None
    stack: str | None = None
    plan: Plan | None = None
    nodes: int | None = None
