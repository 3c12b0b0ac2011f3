"""Rules of ``hidl_workloads.doctor.node``, applied to this host instead of the nodes of a job."""

from __future__ import annotations

from hidl_cli.doctor.context import CachedHost, Context, Subject
from hidl_cli.site.probes.host import ThisHost
from hidl_workloads.doctor import node


def probe(context: Context) -> node.Node | None:
    """Collect the facts about this host.

    Returns None if it is not part of the site or if a recorded host is examined.
    """
    host = context.host.host if isinstance(context.host, CachedHost) else context.host
    return node.probe() if context.is_here and isinstance(host, ThisHost) else None


SUBJECT = Subject(probe, node.RULES)
