"""The baselines of a study: a step of the same rounds, concurrent copies, or earlier runs.

::

    single   E(N) = rate(N)·N0 / (N·rate(N0))          round by round
    copies   E(N) = rate(N) / Σ rate of one-node copies  round by round, over the N nodes
    history  E(N) = rate(N)·N0 / (N·rate(N0) of earlier runs)

``rate`` is the throughput (weak scaling), or the inverse of the time (strong).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from hidl_cli.analysis.measures import by_measure
from hidl_cli.analysis.samples import Sample
from hidl_cli.analysis.scaling.study import Observation
from hidl_cli.analysis.statistics import Interval
from hidl_workloads.repetitions import Bounds, interval, typical

LEAST_EARLIER = 5  # runs that make a history: fewer hardly show how much nights differ


@dataclass(frozen=True)
class Earlier:
    """Earlier results of the baseline of ``step`` ranks or nodes, in the study's unit: one value for each run.

    ``printed``: the values of all repetitions, of which those of runs are means; by default, ``values``.
    """

    step: int
    values: tuple[float, ...]
    printed: tuple[float, ...] = ()


@dataclass(frozen=True)
class Efficiencies:
    """The logarithms of a step's efficiency in the rounds that are complete.

    ``lacking``: the missing (step, round). ``reference``: the logarithms of earlier baselines minus their typical
    value, if the rounds have no baseline of their own. ``margin``: the error of all logarithms by the digits printed
    (``repetitions.rounding``).
    """

    logs: tuple[float, ...]
    lacking: tuple[tuple[int, int], ...] = ()
    reference: tuple[float, ...] = ()
    margin: float = 0.0

    def interval(self, steps: int, rounds: int | None) -> Interval | None:
        """Return the interval of the typical logarithm; None for missing or too few values.

        ``steps`` and ``rounds``: as for ``repetitions.interval``. The uncertainty of earlier runs is added in squares
        (Zou and Donner 2008, Statistics in Medicine 27, 1693-1702).
        """
        found = None if self.lacking else interval(self.logs, steps=steps, rounds=rounds)
        before = self.before(steps)
        if not found or not before:
            return None
        level = typical(self.logs)
        low = level - math.hypot(level - found.low, before.high) - self.margin
        return Interval(low, level + math.hypot(found.high - level, before.low) + self.margin)

    def before(self, steps: int) -> Bounds | None:
        """Return the interval of ``reference`` around 0; None if earlier runs are alike to the last digit."""
        return interval(self.reference, steps=steps) if self.reference else Bounds(0.0, 0.0)


class Single:
    """The smallest step of the same study."""

    def __init__(self, observations: Sequence[Observation], sign: int) -> None:
        self.n = min(observation.step for observation in observations)
        self._rounds = sorted({observation.round for observation in observations})
        self.printed = tuple(o.value for o in observations if o.step == self.n)
        self._rates = {o.round: sign * math.log(o.value) for o in observations if o.step == self.n}

    def efficiencies(self, n: int, rates: Mapping[int, float], _: Mapping[int, tuple[str, ...]]) -> Efficiencies:
        """Return those of the step of ``n``, from its logarithmic rates by round."""
        ideal = math.log(n / self.n)
        logs = tuple(rates[r] - self._rates[r] - ideal for r in rates if r in self._rates)
        lacking = [
            (step, r) for r in self._rounds for step, there in ((self.n, self._rates), (n, rates)) if r not in there
        ]
        return Efficiencies(logs, tuple(lacking))


class Copies:
    """Concurrent copies on one node each: their sum is the limit."""

    def __init__(self, observations: Sequence[Observation], sign: int) -> None:
        copies = [observation for observation in observations if observation.kind == "copy"]
        self.n = copies[0].step
        self.printed = tuple(copy.value for copy in copies)
        self._rounds = sorted({observation.round for observation in observations})
        self.by_round: dict[int, dict[str, float]] = {r: {} for r in self._rounds}
        for copy in copies:
            self.by_round[copy.round][copy.hosts[0]] = copy.value**sign
        self._hosts = {copy.hosts[0] for copy in copies}

    def efficiencies(self, n: int, rates: Mapping[int, float], hosts: Mapping[int, tuple[str, ...]]) -> Efficiencies:
        """Return those of the step of ``n``, against the copies on its own hosts if known, else against the average
        copy.
        """
        logs, lacking = [], []
        for r in self._rounds:
            copies = self.by_round[r]
            if len(copies) < len(self._hosts):
                lacking.append((self.n, r))
            if r not in rates:
                lacking.append((n, r))
            elif len(copies) == len(self._hosts):
                logs.append(rates[r] - math.log(self._limit(n, copies, hosts.get(r, ()))))
        return Efficiencies(tuple(logs), tuple(lacking))

    def _limit(self, n: int, copies: Mapping[str, float], hosts: tuple[str, ...]) -> float:
        if len(hosts) * self.n == n and self._hosts.issuperset(hosts):
            return math.fsum(copies[host] for host in hosts)
        return fmean(copies.values()) * n / self.n


class History:
    """Earlier runs of the same series."""

    def __init__(self, earlier: Earlier, observations: Sequence[Observation], sign: int) -> None:
        self.n = earlier.step
        self._rounds = sorted({observation.round for observation in observations})
        self.values = earlier.values
        self.printed = earlier.printed or earlier.values
        self._logs = tuple(sign * math.log(value) for value in earlier.values)

    def efficiencies(self, n: int, rates: Mapping[int, float], _: Mapping[int, tuple[str, ...]]) -> Efficiencies:
        """Return those of the step of ``n``; both the rounds and the earlier runs vary."""
        usual = typical(self._logs)
        level = usual + math.log(n / self.n)
        lacking = tuple((n, r) for r in self._rounds if r not in rates)
        centred = tuple(log - usual for log in self._logs)
        return Efficiencies(tuple(rate - level for rate in rates.values()), lacking, centred)


def earlier(samples: Iterable[Sample], metric: str, *, step: int, before: str | None = None) -> Earlier:
    """Return the results of earlier runs: the geometric mean of each run's repetitions, in the order of time.

    ``samples`` are those of the baseline's series; ``before`` excludes the run of that name. ``ValueError`` if fewer
    than five runs have the metric, for more than one series, or if a value is zero or less.
    """
    runs = by_measure(sample for sample in samples if sample.metric == metric and sample.run != before)
    if len(runs) > 1:
        raise ValueError(f"{metric} was measured in {len(runs)} series; a baseline must be one series")
    found = [run for series in runs.values() for run in series]
    for run in found:
        if min(run.values) <= 0:
            raise ValueError(f"{metric} was {min(run.values):g} in run {run.sample.run}; a baseline must be positive")
    values = tuple(geometric_mean(run.values) for run in found)
    if len(values) < LEAST_EARLIER:
        raise ValueError(f"{len(values)} earlier run(s) have {metric}; a baseline requires {LEAST_EARLIER}")
    return Earlier(step, values, tuple(value for run in found for value in run.values))


AnyBaseline = Single | Copies | History
