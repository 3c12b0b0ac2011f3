"""Fold and expand host lists with ClusterShell: ``node01, node02, node04`` <-> ``node[01-02,04]``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from hidl_cli.errors import InvalidInput

# Stricter than ClusterShell: no set operators, node groups or wildcards are accepted.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_EXPRESSION = re.compile(r"[A-Za-z0-9._,\[\]-]*")


def fold(hosts: Iterable[str]) -> str:
    """Fold host names into one sorted expression without duplicates; raise ``InvalidInput`` for an invalid name."""
    names = list(hosts)
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"invalid host name {name!r}", hint="use letters, digits, dots, underscores and hyphens")
    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def expand(expression: str) -> tuple[str, ...]:
    """Return the sorted hosts of an expression such as ``node[01-64],login1``, without duplicates.

    Raises ``InvalidInput`` if the expression is invalid.
    """
    invalid = InvalidInput(f"invalid host list {expression!r}", hint="use a list such as node[01-64],login1")
    if not _EXPRESSION.fullmatch(expression):
        raise invalid
    try:
        hosts = tuple(NodeSet(expression, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise invalid from error
    if not all(_NAME.fullmatch(host) for host in hosts):
        raise invalid
    return hosts
