"""The rules of one node, for the host that hidl runs on."""

from __future__ import annotations

from hidl_cli.doctor.asking import Once
from hidl_cli.doctor.context import Context
from hidl_cli.site.probes.host import ThisHost
from hidl_workloads.doctor import node
from hidl_workloads.doctor.finding import Finding

RULES = node.RULES


def examine(context: Context) -> list[Finding]:
    """What is wrong with this host; a host that is not part of the site says nothing of it."""
    asked = context.host.host if isinstance(context.host, Once) else context.host
    if not context.is_here or not isinstance(asked, ThisHost):
        return []
    return RULES.findings(node.probe())
