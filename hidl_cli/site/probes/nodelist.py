"""Lists of hosts as schedulers write them: ``c[101-191],gpu[01-08]``."""

from __future__ import annotations

import re

from ClusterShell.NodeSet import NodeSet, NodeSetException

MOST_NODES = 100_000
_PART = re.compile(r",(?![^\[\]]*\])")


def listed(text: str) -> list[str]:
    """The hosts of a list, each once; none where it is no list, or one of more than ``MOST_NODES``."""
    try:
        return list(dict.fromkeys(hosts_of(text)))
    except NodeSetException:
        return []


def hosts_of(text: str) -> list[str]:
    """Expand a list, and keep names that stand there several times (brokers on one host).

    Raises ``NodeSetException`` where it is no list.
    """
    parts = _PART.split(text) if text and not text.startswith("(") else []
    if any(len(NodeSet(part)) > MOST_NODES for part in parts):
        return []
    return [name for part in parts for name in NodeSet(part)]
