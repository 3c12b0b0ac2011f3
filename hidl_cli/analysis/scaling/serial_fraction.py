"""The serial fraction: Karp-Flatt metric for each step, Amdahl's and Gustafson's laws through all.

At ``p`` times the baseline with efficiency ``E``, a serial fraction ``f`` means

::

    strong  1/E - 1 = f·(p - 1)       Amdahl 1967;  Karp & Flatt 1990, CACM 33, 539-543
    weak    1 - E   = f·(p - 1)/p     Gustafson 1988, CACM 31, 532-533
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hidl_cli.analysis.scaling.study import Fit, Kind, SerialFraction, StepResult
from hidl_cli.analysis.statistics import Interval
from hidl_workloads.repetitions import interval, typical


def fit(kind: Kind, steps: Sequence[StepResult], logs: Mapping[int, Sequence[float]], most: int | None) -> Fit | None:
    """Return the serial fractions of the scaled ``steps`` and of all together; None for fewer than two steps.

    ``logs``: the logarithms of each step's efficiency by round. A step's interval is that of its efficiency,
    transformed (the fraction falls as efficiency rises). The law is fitted to each round by least squares; the typical
    value of the rounds has the same kind of interval as an efficiency. ``most``: see ``rounds`` of ``judge``.
    """
    scaled = [step for step in steps if step.ideal_speedup > 1]
    rounds = min((len(logs[step.n]) for step in scaled), default=0)
    if len(scaled) < 2 or not rounds:
        return None
    by_step = tuple(_of_step(kind, step) for step in scaled)
    ps = [step.ideal_speedup for step in scaled]
    by_round = [_of_round(kind, ps, [math.exp(logs[step.n][r]) for step in scaled]) for r in range(rounds)]
    found = interval(by_round, rounds=most)
    overall = SerialFraction(None, typical(by_round), Interval(*found) if found else None)
    first, last = by_step[0].interval, by_step[-1].interval
    rising = last.low > first.high if first and last else None
    return Fit("amdahl" if kind == "strong" else "gustafson", overall, by_step, rising)


def fraction(kind: Kind, p: float, efficiency: float) -> float:
    """Return the serial fraction at ``p`` times the baseline: the Karp-Flatt metric for strong scaling."""
    return (1 / efficiency - 1) / (p - 1) if kind == "strong" else (1 - efficiency) * p / (p - 1)


def _of_step(kind: Kind, step: StepResult) -> SerialFraction:
    p, found = step.ideal_speedup, step.interval
    ends = Interval(fraction(kind, p, found.high), fraction(kind, p, found.low)) if found else None
    return SerialFraction(step.n, fraction(kind, p, step.efficiency), ends)


def _of_round(kind: Kind, ps: Sequence[float], efficiencies: Sequence[float]) -> float:
    """Fit the loss (of time, relative to one baseline) over 1 - 1/p by least squares through the origin."""
    x = [1 - 1 / p for p in ps]
    pairs = zip(ps, efficiencies, strict=True)
    y = [(1 / e - 1) / p if kind == "strong" else 1 - e for p, e in pairs]
    return math.fsum(a * b for a, b in zip(x, y, strict=True)) / math.fsum(a * a for a in x)
