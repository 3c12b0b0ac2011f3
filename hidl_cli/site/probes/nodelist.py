"""Lists of hosts as schedulers write them: ``c[101-191],gpu[01-08]``."""

from __future__ import annotations

import re
from math import prod

from ClusterShell.NodeSet import NodeSet, NodeSetException

MOST_NODES = 100_000
_WORD = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_PART = re.compile(rf"(?:[\w.%-]|\[{_RANGE}(?:,{_RANGE})*\])+")
_RANGES = re.compile(r"\[([^\]]*)\]")


def listed(text: str) -> list[str]:
    """The hosts of a list, each once; none where it is no list, or one of more than ``MOST_NODES``."""
    try:
        return list(dict.fromkeys(hosts_of(text)))
    except (ValueError, NodeSetException):
        return []


def hosts_of(text: str) -> list[str]:
    """Expand a list, and keep names that stand there several times (brokers on one host).

    Raises ``ValueError`` or ``NodeSetException`` where it is no list, or one of more than ``MOST_NODES``.
    """
    if not text or text.startswith("("):  # (null), (unknown)
        return []
    parts = _WORD.findall(text)
    is_list = ",".join(parts) == text and all(_PART.fullmatch(part) for part in parts)
    if not is_list or sum(map(_size, parts)) > MOST_NODES:
        raise ValueError(f"no list of hosts: {text[:60]}")
    return [name for part in parts for name in NodeSet(part)]


def _size(part: str) -> int:
    """How many hosts it may be, before any is made."""
    return prod(sum(map(_length, ranges.split(","))) for ranges in _RANGES.findall(part))


def _length(numbers: str) -> int:
    low, _, high = numbers.partition("-")
    return max(1, int(high or low) - int(low) + 1)
