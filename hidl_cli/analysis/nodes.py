"""Detect slow nodes and slow links from a metric measured between all pairs of nodes.

The rate of a pair is modelled as the product of two node factors and a link factor, so its logarithm is a sum:
``y[i,j] = b[i] + b[j] + e[i,j]``. The node factors are fitted by least absolute residuals, so that a few slow links are
not mistaken for slow nodes, and slow nodes do not make the other nodes look fast.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any

from hidl_cli.analysis.scaling import LEAST_BEHIND, LEAST_NODES, NodeSpeed, nodes
from hidl_cli.analysis.scaling import SLOW as SIGNIFICANT
from hidl_cli.errors import InvalidInput
from hidl_cli.launch.hostlist import fold
from hidl_workloads.repetitions import rounding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hidl_cli.plan.workload import Metric


Pair = tuple[str, str]

LEAST_FOR_LINKS = 5  # minimum number of nodes; the 6 links of four nodes leave only two degrees of freedom for noise
_STEPS = 60  # number of iterations; every three of them add about one correct digit
_STEPS_OF_SIMULATION = 15
_SIMULATED = 2000
_MOST_ROUNDS = 3  # simulated rounds; the limit is conservative, because medians of more rounds have lighter tails
_MANY = 32  # number of nodes above which the fit changes links so little that the simulation skips it


@dataclass(frozen=True, slots=True)
class Link:
    """A link between two nodes; ``relative`` is its rate relative to the other links of both nodes."""

    pair: Pair
    relative: float
    slow: bool


@dataclass(frozen=True, slots=True)
class Field:
    """The analysis of a metric measured between all pairs of nodes.

    Attributes:
        values: Median of the repetitions, by pair.
        nodes: Speeds relative to the median node, starting with the slowest node.
        links: All links, starting with the slowest, or none if there are too few nodes.
    """

    metric: str
    unit: str
    better: str
    values: Mapping[Pair, float]
    nodes: tuple[NodeSpeed, ...]
    links: tuple[Link, ...]

    @property
    def slow_nodes(self) -> tuple[NodeSpeed, ...]:
        """The nodes that are slower than can be explained by chance."""
        return tuple(node for node in self.nodes if node.slow)

    @property
    def slow_links(self) -> tuple[Link, ...]:
        """The links that are slower than can be explained by their nodes and by chance."""
        return tuple(link for link in self.links if link.slow)

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes in natural order."""
        return tuple(sorted({name for pair in self.values for name in pair}, key=natural))


def field(metric: str, unit: str, better: str, rounds: Sequence[Mapping[Pair, float]]) -> Field:
    """Analyse the values of a metric between pairs of nodes.

    Args:
        metric: Name of the metric.
        unit: Unit of the values.
        better: ``higher`` or ``lower``.
        rounds: Values by pair, for each repetition. Pairs that are missing in a round are excluded.

    Raises:
        ValueError: If a value is not positive or no pair is left.
    """
    pairs = [pair for pair in rounds[0] if all(pair in each for each in rounds)] if rounds else []
    if not pairs or any(each[pair] <= 0 for each in rounds for pair in pairs):
        raise ValueError(f"{metric} was not measured between two nodes or has a value that is not positive")
    sign = 1 if better == "higher" else -1
    logs = [{pair: sign * math.log(each[pair]) for pair in pairs} for each in rounds]
    values = {pair: median(each[pair] for each in rounds) for pair in pairs}
    if len({name for pair in pairs for name in pair}) < LEAST_NODES:
        return Field(metric, unit, better, values, (), ())
    strengths = [fit(each) for each in logs]
    rates = {turn: {name: math.exp(b) for name, b in each.items()} for turn, each in enumerate(strengths)}
    digits = rounding([each[pair] for each in rounds for pair in pairs])
    found = nodes(rates, medians_of=len(strengths[0]) - 1, digits=digits)
    residuals = {(i, j): median(y[i, j] - b[i] - b[j] for y, b in zip(logs, strengths, strict=True)) for i, j in pairs}
    return Field(metric, unit, better, values, found, _links(residuals, len(strengths[0]), len(rounds), digits))


def fit(logs: Mapping[Pair, float]) -> dict[str, float]:
    """Return the node factors ``b`` that minimize the sum of ``|y[i,j] - b[i] - b[j]|`` for at least three nodes."""
    import numpy as np

    names = sorted({name for pair in logs for name in pair})
    index = {name: number for number, name in enumerate(names)}
    y = np.full((1, len(names), len(names)), np.nan)
    for (i, j), log in logs.items():
        y[0, index[i], index[j]] = y[0, index[j], index[i]] = log
    return dict(zip(names, _fit(y, _STEPS)[0].tolist(), strict=True))


def _fit(y: NDArray[Any], steps: int) -> NDArray[Any]:
    """Fit many symmetric matrices at once by iteratively reweighted least squares: (fields, n, n) -> (fields, n).

    Missing values are NaN. Each step weights a pair by the inverse of its previous residual.
    """
    import numpy as np

    known = ~np.isnan(y)
    y = np.where(known, y, 0.0)
    smallest = 1e-9 * (1 + np.abs(y).max())
    diagonal = np.arange(y.shape[1])
    weights = known.astype(float)
    for step in range(steps):
        system = weights.copy()
        system[:, diagonal, diagonal] = weights.sum(axis=2) * (1 + 1e-12)  # never singular
        b: NDArray[Any] = np.linalg.solve(system, (weights * y).sum(axis=2)[..., None])[..., 0]
        if step < steps - 1:
            weights = known / np.maximum(np.abs(y - b[:, :, None] - b[:, None, :]), smallest)
    return b


def _links(residuals: Mapping[Pair, float], count: int, rounds: int, digits: float) -> tuple[Link, ...]:
    """Return all links, starting with the slowest.

    The distance of each link, in spreads, is compared with simulated distances of the slowest link. The simulated
    fields have the same size, but equal nodes and links, and are fitted in the same way.

    Args:
        residuals: Logarithmic residuals of the pairs, as medians over the rounds.
        count: Number of nodes.
        rounds: Number of rounds.
        digits: Rounding error of the logarithms, which is the smallest spread.
    """
    if count < LEAST_FOR_LINKS:
        return ()
    import numpy as np

    spread = max(digits, float(_spread(np.abs(np.array([list(residuals.values())])), count)[0]))
    farthest = _farthest(count, rounds)
    found = []
    for pair, log in residuals.items():
        unlikely = float(np.mean(farthest >= -log / spread)) < SIGNIFICANT
        found.append(Link(pair, math.exp(log), unlikely and math.exp(log) <= 1 - LEAST_BEHIND))
    return tuple(sorted(found, key=lambda link: link.relative))


def _spread(distances: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the random spread of links: the median of their distances, without the links that the fit matches exactly.

    The fit matches as many links exactly as there are nodes (Maronna, Martin & Yohai, Robust Statistics, section 4.4).
    """
    import numpy as np

    of_others: NDArray[Any] = np.median(np.sort(distances, axis=1)[:, count:], axis=1)
    return of_others


@lru_cache(maxsize=32)
def _farthest(count: int, rounds: int) -> NDArray[Any]:
    """Simulate fields with equally fast nodes and links, and return the distance of each field's slowest link.

    The distance is a multiple of the spread (see ``_spread``). As in ``field``, each round is fitted separately and the
    medians over the rounds are used.
    """
    import numpy as np

    first, second = np.triu_indices(count, 1)
    shape = (_SIMULATED if count <= _MANY // 2 else _SIMULATED // 4, min(rounds, _MOST_ROUNDS), len(first))
    # Student's t with 3 degrees of freedom, because with limits for normal noise, a slow link would be reported in 5 %
    # of fields whose nodes and links are equally fast.
    values = np.random.default_rng(0).standard_t(3, shape)
    if count <= _MANY:
        y = np.full((*shape[:2], count, count), np.nan)
        y[..., first, second] = y[..., second, first] = values
        b = _fit(y.reshape(-1, count, count), _STEPS_OF_SIMULATION).reshape(*shape[:2], count)
        values = values - b[..., first] - b[..., second]
    values = np.median(values, axis=1)
    distances: NDArray[Any] = -values.min(axis=1) / _spread(np.abs(values), count)
    return distances


def relative_rates(each: Field) -> dict[Pair, float]:
    """Return the rate of each pair relative to the median pair, for both orders of the nodes; above 1 is better."""
    rates = {pair: value if each.better == "higher" else 1 / value for pair, value in each.values.items()}
    typical = median(rates.values())
    return {pair: rate / typical for (a, b), rate in rates.items() for pair in ((a, b), (b, a))}


def natural(name: str) -> tuple[object, ...]:
    """Return a sort key that puts node2 before node10."""
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", name))


def to_json(fields: Sequence[Field]) -> list[dict[str, Any]]:
    """Return the fields as JSON-serializable data, without their values, which are stored with the metrics."""
    return [
        {
            "metric": each.metric,
            "nodes": [asdict(node) for node in each.nodes],
            "slow_links": [asdict(link) for link in each.slow_links],
        }
        for each in fields
    ]


# The verdict on nodes and links, and the nodes to exclude.


@dataclass(frozen=True)
class PairsVerdict:
    """The verdict on nodes and links: ``pass``, ``fail`` if any is slow, or None if there are too few nodes."""

    verdict: str | None
    reason: str
    hint: str | None


def fields_of(promised: Mapping[str, Metric], steps: Sequence[Mapping[str, Any]]) -> tuple[Field, ...]:
    """Analyse each metric that was measured between pairs of nodes; ``steps`` are the repetitions of a single plan."""
    fields = []
    for name, metric in promised.items():
        rounds = [dict(_pairs(step["metrics"].get(name, {}))) for step in steps]
        if metric.better and rounds and all(rounds) and all(value > 0 for each in rounds for value in each.values()):
            fields.append(field(name, metric.unit, metric.better, rounds))
    return tuple(fields)


def judge_fields(fields: Sequence[Field]) -> PairsVerdict:
    """Return the verdict on all nodes and links, based on all metrics."""
    if not fields:
        return PairsVerdict(None, "not judged: no metric for pairs declares whether higher or lower is better", None)
    count = len(fields[0].names)
    if count < LEAST_NODES:
        reason = f"not judged: comparing nodes requires at least {LEAST_NODES} nodes, not {count}"
        return PairsVerdict(None, reason, None)
    slow = describe_slow(fields)
    if not slow:
        unknown = "" if count >= LEAST_FOR_LINKS else f" (detecting slow links requires {LEAST_FOR_LINKS} nodes)"
        reason = f"none of {count} nodes is significantly slower than the others{unknown}"
        return PairsVerdict("pass", reason, None)
    excluded = slow_host_list(fields)
    hint = f"exclude the slow nodes until they are fixed: --exclude={excluded}" if excluded else None
    return PairsVerdict("fail", "; ".join(slow), hint or "check the cables, ports and switches between them")


def describe_slow(fields: Sequence[Field]) -> list[str]:
    """Describe the slow nodes and links."""
    return [*_slow_nodes(fields), *_slow_links(fields)]


def slow_host_list(fields: Sequence[Field]) -> str:
    """Return the slow nodes as a folded host list for the scheduler (``node[07,12]``).

    Returns an empty string if no node is slow, or if the names refer to ranks of one node instead of hosts.
    """
    try:
        return fold({node.host for each in fields for node in each.slow_nodes})
    except InvalidInput:
        return ""


def _slow_nodes(fields: Sequence[Field]) -> Iterator[str]:
    for each in fields:
        slow = [f"{node.host} ({node.relative:.2f} of the median rate)" for node in each.slow_nodes]
        if slow:
            yield f"slow in {each.metric}: {', '.join(slow)}"


def _slow_links(fields: Sequence[Field]) -> Iterator[str]:
    for each in fields:
        slow = [f"{' - '.join(link.pair)} ({link.relative:.2f} of the expected rate)" for link in each.slow_links]
        if slow:
            yield f"slow link in {each.metric}: {', '.join(slow)}"


def _pairs(metric: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    for pair, value in zip(metric.get("pairs", ()), metric.get("samples", ()), strict=False):
        yield (pair[0], pair[1]), float(value)
