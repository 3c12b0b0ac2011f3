"""Fold and expand host lists: ``node01, node02, node04`` <-> ``node[01-02,04]``, by ClusterShell."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from hidl_cli.errors import InvalidInput

# Without set operators, groups and wildcards of ClusterShell.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_EXPRESSION = re.compile(r"[A-Za-z0-9._,\[\]-]*")


def fold(hosts: Iterable[str]) -> str:
    """Return the hosts as one expression, in natural order, each once; ``InvalidInput`` for an invalid host name."""
    names = list(hosts)
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"invalid host name {name!r}", hint="letters, digits, dots, underscores and hyphens")
    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def expand(expression: str) -> tuple[str, ...]:
    """Return the hosts of an expression (``node[01-64],login1``), in natural order, each once.

    Raises ``InvalidInput`` if the expression is invalid.
    """
    refused = InvalidInput(f"invalid host list {expression!r}", hint="for example node[01-64],login1")
    if not _EXPRESSION.fullmatch(expression):
        raise refused
    try:
        hosts = tuple(NodeSet(expression, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise refused from error
    if not all(_NAME.fullmatch(host) for host in hosts):
        raise refused
    return hosts
