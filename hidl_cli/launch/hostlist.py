"""Host lists, folded and expanded: ``node01, node02, node04`` <-> ``node[01-02,04]``, through ClusterShell."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from hidl_cli.errors import InvalidInput

# Not what ClusterShell would read as more: set operators, groups, wildcards.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_EXPRESSION = re.compile(r"[A-Za-z0-9._,\[\]-]*")


def fold(hosts: Iterable[str]) -> str:
    """The hosts as one expression, in natural order, each once; ``InvalidInput`` for what is no host name."""
    names = list(hosts)
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is no host name", hint="letters, digits, dots, underscores and hyphens")
    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def expand(expression: str) -> tuple[str, ...]:
    """The hosts of a folded expression (``node[01-64],login1``), in natural order, each once.

    Raises ``InvalidInput`` where it cannot be read.
    """
    refused = InvalidInput(f"the host list {expression!r} is not understood", hint="for example node[01-64],login1")
    if not _EXPRESSION.fullmatch(expression):
        raise refused
    try:
        hosts = tuple(NodeSet(expression, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise refused from error
    if not all(_NAME.fullmatch(host) for host in hosts):
        raise refused
    return hosts
