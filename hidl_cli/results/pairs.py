"""Slow nodes and slow links, from a figure that was measured between every two nodes.

The rate of a pair is taken as the product of what its two nodes reach and what the link between them reaches. In
logarithms that is a sum: ``y[i,j] = b[i] + b[j] + e[i,j]``. The nodes' part is fitted with the least sum of absolute
residuals: a slow link, or a few, then do not show as slow nodes, and slow nodes do not make the others look fast.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any

from hidl_cli.results.slow_nodes import LEAST_BEHIND, LEAST_NODES, SIGNIFICANT, nodes
from hidl_cli.results.study import Node

if TYPE_CHECKING:
    from numpy.typing import NDArray

Pair = tuple[str, str]

LEAST_FOR_LINKS = 5  # nodes: of the 6 links among four, four go into what the nodes reach, and two are left
_STEPS = 60  # of the iteration; it gains about a digit in three
_STEPS_OF_SIMULATION = 15
_SIMULATED = 2000
_MANY = 32  # nodes; of more, the fit takes so little from each link that the simulation can do without it


@dataclass(frozen=True, slots=True)
class Link:
    """A link: ``relative`` to what its two nodes reach with others (0.5: half the rate)."""

    pair: Pair
    relative: float
    slow: bool


@dataclass(frozen=True, slots=True)
class Field:
    """One metric of all pairs. ``values``: the median of the repetitions. ``nodes``: the slowest first, ``relative`` to
    the median node; ``links``: all, the slowest first, empty where there are too few nodes to tell."""

    metric: str
    unit: str
    better: str
    values: Mapping[Pair, float]
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    @property
    def slow_nodes(self) -> tuple[Node, ...]:
        """Those that are behind by more than chance."""
        return tuple(node for node in self.nodes if node.slow)

    @property
    def slow_links(self) -> tuple[Link, ...]:
        """Those that are behind what their nodes reach elsewhere, by more than chance."""
        return tuple(link for link in self.links if link.slow)

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes in natural order."""
        return tuple(sorted({name for pair in self.values for name in pair}, key=natural))


def field(metric: str, unit: str, better: str, rounds: Sequence[Mapping[Pair, float]]) -> Field:
    """What ``rounds`` (one for each repetition: pair -> value) show; ``better``: ``higher`` or ``lower``.

    Pairs that are not in all rounds are left out. Raises ``ValueError`` for a value that is not positive, and where no
    pair is left.
    """
    pairs = [pair for pair in rounds[0] if all(pair in each for each in rounds)] if rounds else []
    if not pairs or any(each[pair] <= 0 for each in rounds for pair in pairs):
        raise ValueError(f"{metric} was not measured between two nodes, or is not positive")
    sign = 1 if better == "higher" else -1
    logs = [{pair: sign * math.log(each[pair]) for pair in pairs} for each in rounds]
    values = {pair: median(each[pair] for each in rounds) for pair in pairs}
    if len({name for pair in pairs for name in pair}) < LEAST_NODES:
        return Field(metric, unit, better, values, (), ())
    strengths = [fit(each) for each in logs]
    found = nodes({turn: {name: math.exp(b) for name, b in each.items()} for turn, each in enumerate(strengths)})
    left = {(i, j): median(y[i, j] - b[i] - b[j] for y, b in zip(logs, strengths, strict=True)) for i, j in pairs}
    return Field(metric, unit, better, values, found, _links(left, len(strengths[0])))


def fit(logs: Mapping[Pair, float]) -> dict[str, float]:
    """The ``b`` that makes the sum of ``|y[i,j] - b[i] - b[j]|`` least, for three nodes or more."""
    import numpy as np

    names = sorted({name for pair in logs for name in pair})
    place = {name: number for number, name in enumerate(names)}
    y = np.full((1, len(names), len(names)), np.nan)
    for (i, j), log in logs.items():
        y[0, place[i], place[j]] = y[0, place[j], place[i]] = log
    return dict(zip(names, _fit(y, _STEPS)[0].tolist(), strict=True))


def _fit(y: NDArray[Any], steps: int) -> NDArray[Any]:
    """The same for many symmetric matrices at once, NaN where nothing was measured: (fields, n, n) -> (fields, n).

    Iteratively reweighted least squares: each step weighs a pair by the inverse of its residual in the step before.
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


def _links(left: Mapping[Pair, float], count: int) -> tuple[Link, ...]:
    """The links by what is left of them when the nodes' part is taken away; ``count``: of nodes.

    How far the slowest lies behind is counted in spreads, and compared with how far it does in fields of as many equal
    nodes and links that are fitted in the same way, by simulation.
    """
    if count < LEAST_FOR_LINKS:
        return ()
    import numpy as np

    spread = float(_spread(np.abs(np.array([list(left.values())])), count)[0])
    farthest = _farthest(count)
    found = []
    for pair, log in left.items():
        distance = -log / spread if spread > 0 else math.copysign(math.inf, -log) if abs(log) > 1e-6 else 0.0
        unlikely = float(np.mean(farthest >= distance)) < SIGNIFICANT
        found.append(Link(pair, math.exp(log), unlikely and math.exp(log) <= 1 - LEAST_BEHIND))
    return tuple(sorted(found, key=lambda link: link.relative))


def _spread(distances: NDArray[Any], count: int) -> NDArray[Any]:
    """How far links differ by chance: the median distance of those that the fit does not go through exactly.

    It goes through as many as there are nodes. (Maronna, Martin, Yohai: Robust Statistics, 4.4, on this kind of fit.)
    """
    import numpy as np

    of_others: NDArray[Any] = np.median(np.sort(distances, axis=1)[:, count:], axis=1)
    return of_others


@lru_cache(maxsize=32)
def _farthest(count: int) -> NDArray[Any]:
    """How many spreads behind the slowest link of so many equal nodes lies: simulated, one figure for each field."""
    import numpy as np

    random = np.random.default_rng(0)
    first, second = np.triu_indices(count, 1)
    values = random.standard_normal((_SIMULATED if count <= _MANY else _SIMULATED // 4, len(first)))
    if count <= _MANY:
        y = np.full((len(values), count, count), np.nan)
        y[:, first, second] = y[:, second, first] = values
        b = _fit(y, _STEPS_OF_SIMULATION)
        values = values - b[:, first] - b[:, second]
    distances: NDArray[Any] = -values.min(axis=1) / _spread(np.abs(values), count)
    return distances


def natural(name: str) -> tuple[object, ...]:
    """Sorts node2 before node10."""
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", name))


def to_json(fields: Sequence[Field]) -> list[dict[str, Any]]:
    """The fields as plain data; the values themselves are in the metrics."""
    return [
        {
            "metric": each.metric,
            "nodes": [asdict(node) for node in each.nodes],
            "slow_links": [asdict(link) for link in each.slow_links],
        }
        for each in fields
    ]
