"""Find slow nodes from copies of one program that ran on all of them at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
_PASSES = 10


def nodes(rates: Mapping[int, Mapping[str, float]]) -> tuple[NodeSpeed, ...]:
    """Return how fast each host is, the slowest first; ``rates``: by round and host, higher is better.

    A host's rate is the median over its rounds, relative to what all hosts reach in these; values may be missing.
    Its distance, in median absolute deviations of all hosts, is compared by simulation with that of the slowest of as
    many equal (normally distributed) hosts, which corrects for multiple comparisons. A host with fewer values counts
    less. With fewer than four hosts, none is slow.
    """
    logs = {(round_, host): math.log(rate) for round_, of_round in rates.items() for host, rate in of_round.items()}
    hosts = sorted({host for _, host in logs})
    if not hosts:
        return ()
    behind = _behind(logs, hosts)
    centre = median(behind.values())
    counts = Counter(host for _, host in logs)
    weights = {host: math.sqrt(counts[host] / max(counts.values())) for host in hosts}
    deviation = median(abs(value - centre) * weights[host] for host, value in behind.items())
    found = [
        _node(host, value - centre, (value - centre) * weights[host], deviation, len(hosts))
        for host, value in behind.items()
    ]
    return tuple(sorted(found, key=lambda node: node.relative))


def _behind(logs: Mapping[tuple[int, str], float], hosts: Sequence[str]) -> dict[str, float]:
    """Return the logarithmic rate of each host without the levels of the rounds, by median polish.

    One pass is enough if no value is missing. Otherwise, the level of a round depends on which hosts it has.
    """
    of_round: dict[int, list[str]] = {}
    of_host: dict[str, list[int]] = {host: [] for host in hosts}
    for round_, host in logs:
        of_round.setdefault(round_, []).append(host)
        of_host[host].append(round_)
    behind = dict.fromkeys(hosts, 0.0)
    is_complete = len(logs) == len(of_round) * len(hosts)
    for _ in range(1 if is_complete else _PASSES):
        levels = {each: median(logs[each, host] - behind[host] for host in its) for each, its in of_round.items()}
        behind = {host: median(logs[each, host] - levels[each] for each in its) for host, its in of_host.items()}
    return behind


def _node(host: str, log: float, weighted: float, deviation: float, hosts: int) -> NodeSpeed:
    if hosts < LEAST_NODES:
        return NodeSpeed(host, math.exp(log), None, False)
    import numpy as np

    distance = -weighted / deviation if deviation > 0 else math.copysign(math.inf, -log) if log else 0.0
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
