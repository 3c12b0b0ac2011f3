"""The verdict on what was measured between every two nodes, and which nodes to leave out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.hostlist import fold
from hidl_cli.results.pairs import LEAST_FOR_LINKS, Field, field
from hidl_cli.results.slow_nodes import LEAST_NODES
from hidl_cli.runs.workload import Metric


@dataclass(frozen=True)
class Outcome:
    """``verdict``: pass, fail (something is slow), or None where there are too few nodes to tell."""

    verdict: str | None
    reason: str
    hint: str | None


def fields_of(promised: Mapping[str, Metric], steps: Sequence[Mapping[str, Any]]) -> tuple[Field, ...]:
    """What the steps of one plan, repetitions of the same, show of each metric that belongs to pairs of nodes."""
    fields = []
    for name, metric in promised.items():
        rounds = [dict(_pairs(step["metrics"].get(name, {}))) for step in steps]
        if metric.better and rounds and all(rounds) and all(value > 0 for each in rounds for value in each.values()):
            fields.append(field(name, metric.unit, metric.better, rounds))
    return tuple(fields)


def outcome(fields: Sequence[Field]) -> Outcome:
    """Is any node or link slow, by any of the metrics?"""
    if not fields:
        return Outcome(None, "no metric of pairs knows which direction is better: there is nothing to judge", None)
    count = len(fields[0].names)
    if count < LEAST_NODES:
        reason = f"{count} nodes: with fewer than {LEAST_NODES}, there is nothing to compare one with"
        return Outcome(None, reason, None)
    slow = told(fields)
    if not slow:
        unknown = "" if count >= LEAST_FOR_LINKS else f" (links are told apart from {LEAST_FOR_LINKS} nodes on)"
        return Outcome("pass", f"none of {count} nodes is slower than the others by more than chance{unknown}", None)
    left_out = exclude(fields)
    hint = f"leave out what is slow until it is mended: --exclude={left_out}" if left_out else None
    return Outcome("fail", "; ".join(slow), hint or "look at the cables, ports and switches between the two")


def told(fields: Sequence[Field]) -> list[str]:
    """What is slow, in sentences."""
    return [*_slow_nodes(fields), *_slow_links(fields)]


def exclude(fields: Sequence[Field]) -> str:
    """The slow nodes as one folded list for the scheduler (``node[07,12]``); empty where none is slow, or where these
    are ranks of one node."""
    try:
        return fold({node.host for each in fields for node in each.slow_nodes})
    except InvalidInput:
        return ""


def _slow_nodes(fields: Sequence[Field]) -> Iterator[str]:
    for each in fields:
        slow = [f"{node.host} ({node.relative:.2f} of the usual rate)" for node in each.slow_nodes]
        if slow:
            yield f"slow in {each.metric}: {', '.join(slow)}"


def _slow_links(fields: Sequence[Field]) -> Iterator[str]:
    for each in fields:
        slow = [f"{' - '.join(link.pair)} ({link.relative:.2f} of what both reach)" for link in each.slow_links]
        if slow:
            yield f"slow link in {each.metric}: {', '.join(slow)}"


def _pairs(metric: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    for pair, value in zip(metric.get("pairs", ()), metric.get("samples", ()), strict=False):
        yield (pair[0], pair[1]), float(value)
