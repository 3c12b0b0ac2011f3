"""The verdict on a metric measured between every two nodes, and the nodes to exclude."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hidl_cli.analysis.nodes.pairs import LEAST_FOR_LINKS, Field, field
from hidl_cli.analysis.nodes.slow_nodes import LEAST_NODES
from hidl_cli.errors import InvalidInput
from hidl_cli.launch.hostlist import fold
from hidl_cli.plan.workload import Metric


@dataclass(frozen=True)
class PairsVerdict:
    """``verdict``: pass, fail (something is slow), or None for too few nodes."""

    verdict: str | None
    reason: str
    hint: str | None


def fields_of(promised: Mapping[str, Metric], steps: Sequence[Mapping[str, Any]]) -> tuple[Field, ...]:
    """Return the analysis of each metric of pairs of nodes; ``steps``: the repetitions of one plan."""
    fields = []
    for name, metric in promised.items():
        rounds = [dict(_pairs(step["metrics"].get(name, {}))) for step in steps]
        if metric.better and rounds and all(rounds) and all(value > 0 for each in rounds for value in each.values()):
            fields.append(field(name, metric.unit, metric.better, rounds))
    return tuple(fields)


def judge_fields(fields: Sequence[Field]) -> PairsVerdict:
    """Judge whether any node or link is slow by any of the metrics."""
    if not fields:
        return PairsVerdict(None, "no metric of pairs says which direction is better: nothing to judge", None)
    count = len(fields[0].names)
    if count < LEAST_NODES:
        reason = f"{count} nodes: a comparison requires at least {LEAST_NODES}"
        return PairsVerdict(None, reason, None)
    slow = describe_slow(fields)
    if not slow:
        unknown = "" if count >= LEAST_FOR_LINKS else f" (slow links are detected with {LEAST_FOR_LINKS} nodes or more)"
        return PairsVerdict(
            "pass", f"none of {count} nodes is slower than the others by more than chance{unknown}", None
        )
    left_out = slow_host_list(fields)
    hint = f"exclude the slow nodes until they are fixed: --exclude={left_out}" if left_out else None
    return PairsVerdict("fail", "; ".join(slow), hint or "check the cables, ports and switches between them")


def describe_slow(fields: Sequence[Field]) -> list[str]:
    """Return sentences about what is slow."""
    return [*_slow_nodes(fields), *_slow_links(fields)]


def slow_host_list(fields: Sequence[Field]) -> str:
    """Return the slow nodes as a folded list for the scheduler (``node[07,12]``); empty if none is slow, or if these
    are ranks of one node.
    """
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
