"""Find slow nodes from copies of one program that ran on all of them at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any

from hidl_cli.analysis.scaling.study import NodeSpeed

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_NODES = 4  # of three, one differs most and two are near each other by chance too often
LEAST_BEHIND = 0.03  # what is less is no reason to call somebody
SIGNIFICANT = 0.01  # of all sets of equal nodes, so many have one that is called slow
_SIMULATED = 20_000


def nodes(rates: Mapping[int, Mapping[str, float]]) -> tuple[NodeSpeed, ...]:
    """Return how fast each host is, the slowest first; ``rates``: by round and host, higher is better.

    Within a round, each host is compared with the median of all; its value is the median over the rounds. Its distance,
    in median absolute deviations of all hosts, is compared by simulation with that of the slowest of as many equal
    (normally distributed) hosts, which corrects for multiple comparisons. With fewer than four hosts, none is slow.
    """
    hosts = sorted(set.intersection(*(set(of_round) for of_round in rates.values()))) if rates else []
    if not hosts:
        return ()
    relative = {host: [] for host in hosts}  # type: dict[str, list[float]]
    for of_round in rates.values():
        middle = median(math.log(of_round[host]) for host in hosts)
        for host in hosts:
            relative[host].append(math.log(of_round[host]) - middle)
    behind = {host: median(logs) for host, logs in relative.items()}
    centre = median(behind.values())
    deviation = median(abs(value - centre) for value in behind.values())
    found = [_node(host, value - centre, deviation, len(hosts)) for host, value in behind.items()]
    return tuple(sorted(found, key=lambda node: node.relative))


def _node(host: str, log: float, deviation: float, hosts: int) -> NodeSpeed:
    if hosts < LEAST_NODES:
        return NodeSpeed(host, math.exp(log), None, False)
    import numpy as np

    distance = -log / deviation if deviation > 0 else math.copysign(math.inf, -log) if log else 0.0
    farthest = _farthest(hosts)
    p = float(np.mean(farthest >= distance))
    return NodeSpeed(host, math.exp(log), p, p < SIGNIFICANT and math.exp(log) <= 1 - LEAST_BEHIND)


@lru_cache(maxsize=32)
def _farthest(hosts: int) -> NDArray[Any]:
    """Return the simulated distances, in median absolute deviations, of the slowest of equal hosts."""
    import numpy as np

    values = np.random.default_rng(0).standard_normal((_SIMULATED if hosts <= 200 else _SIMULATED // 10, hosts))
    centred = values - np.median(values, axis=1, keepdims=True)
    distances: NDArray[Any] = -centred.min(axis=1) / np.median(np.abs(centred), axis=1)
    return distances
