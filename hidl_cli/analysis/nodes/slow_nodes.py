"""Find slow nodes from copies of one program that ran on all of them at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any

from hidl_cli.analysis.scaling.study import NodeSpeed
from hidl_workloads.repetitions import rounding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST_NODES = 4  # of three, one differs most and two are near each other by chance too often
LEAST_BEHIND = 0.03  # what is less is no reason to call somebody
SIGNIFICANT = 0.01  # of all sets of equal nodes, so many have one that is called slow
_SIMULATED = 5_000
_PASSES = 10
_QUANTILES = 4000


def nodes(
    rates: Mapping[int, Mapping[str, float]], *, medians_of: int = 1, digits: float | None = None
) -> tuple[NodeSpeed, ...]:
    """Return how fast each host is, the slowest first.

    A host's rate is the median over its rounds, relative to what all hosts reach in these; values may be missing.
    Its distance, in median absolute deviations of all hosts, is compared by simulation with that of the slowest of as
    many equal hosts whose noise has heavy tails, which corrects for multiple comparisons. A host with fewer values
    counts less. With fewer than four hosts, none is slow. The deviation is at least the error of rounding: most hosts
    can have the same value to the last digit, and what is one digit lower is not slow.

    Args:
        rates: By round and host; higher is better.
        medians_of: How many measured values each of them is the median of.
        digits: Error of their logarithms by the digits printed (``repetitions.rounding``); by default, that of
            ``rates``. Rates that are inverted times have all digits.
    """
    logs = {(round_, host): math.log(rate) for round_, of_round in rates.items() for host, rate in of_round.items()}
    hosts = sorted({host for _, host in logs})
    if not hosts:
        return ()
    behind = _behind(logs, hosts)
    centre = median(behind.values())
    counts = Counter(host for _, host in logs)
    weights = {host: math.sqrt(counts[host] / max(counts.values())) for host in hosts}
    if digits is None:
        digits = rounding([rate for of_round in rates.values() for rate in of_round.values()])
    deviation = max(digits, median(abs(value - centre) * weights[host] for host, value in behind.items()))
    found = [
        _node(host, value - centre, weights[host], deviation, _farthest(len(hosts), counts[host] * medians_of))
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


def _node(host: str, log: float, weight: float, deviation: float, farthest: NDArray[Any] | None) -> NodeSpeed:
    if farthest is None:
        return NodeSpeed(host, math.exp(log), None, False)
    import numpy as np

    p = float(np.mean(farthest >= -log * weight / deviation))
    return NodeSpeed(host, math.exp(log), p, p < SIGNIFICANT and math.exp(log) <= 1 - LEAST_BEHIND)


@lru_cache(maxsize=32)
def _farthest(hosts: int, values: int) -> NDArray[Any] | None:
    """Return the simulated distances, in median absolute deviations, of the slowest of equal hosts; None for too few.

    ``values``: how many values the rate of a host is the median of.
    """
    if hosts < LEAST_NODES:
        return None
    import numpy as np

    shape = (_SIMULATED if hosts <= 100 else _SIMULATED // 5, hosts)
    medians = heavy_medians(np.random.default_rng(0), shape, values)
    centred = medians - np.median(medians, axis=1, keepdims=True)
    distances: NDArray[Any] = -centred.min(axis=1) / np.median(np.abs(centred), axis=1)
    return distances


def heavy_medians(random: np.random.Generator, shape: tuple[int, int], values: int) -> NDArray[Any]:
    """Return medians of so many values each, which have Student's t distribution with 3 degrees of freedom.

    Times on shared machines have such tails: by the limit for normal noise, 3.4 % instead of 1 % of sets of 16 equal
    nodes have one that is called slow. The median of an even number of values has the tails of one value less.
    """
    import numpy as np

    rank = (values - 1) // 2 + 1  # of the median; its probability has a beta distribution
    tangents = np.sinh(np.linspace(-12, 12, _QUANTILES))
    probabilities = 0.5 + (np.arctan(tangents) + tangents / (1 + tangents**2)) / math.pi
    quantiles: NDArray[Any] = np.interp(random.beta(rank, rank, shape), probabilities, tangents * math.sqrt(3))
    return quantiles
