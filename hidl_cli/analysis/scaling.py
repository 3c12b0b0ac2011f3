"""Scaling studies: observations, baselines, verdicts, and the ``hidl.verdict/1`` document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from statistics import fmean, geometric_mean, median, stdev
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hidl_cli.analysis.samples import Sample, by_measure
from hidl_cli.analysis.statistics import (
    CONFIDENCE,
    MIN_REPETITIONS,
    Interval,
    coefficient_of_variation,
    repetitions_needed,
)
from hidl_workloads.repetitions import Bounds, half_width, interval, required_confidence, rounding, typical
from hidl_workloads.repetitions import confidence as confidence_for

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hidl_cli.plan.launch_plan import Baseline


SCHEMA = "hidl.verdict/1"

Kind = Literal["weak", "strong"]
Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Observation:
    """A single measurement in a scaling study.

    A *copy* is one of several single-node runs executed concurrently. Their summed throughput is an upper bound for
    larger steps.

    Attributes:
        step: Size in ranks or nodes, depending on the study; for a copy, the size of that copy.
        value: Throughput for weak scaling, and time for strong scaling.
        hosts: Hosts used by the step. The step is compared with the copies on those hosts; a copy has one host.
    """

    step: int
    round: int
    value: float
    kind: Literal["step", "copy"] = "step"
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step over its repetitions.

    The baseline has efficiency 1, no interval and no verdict.

    Attributes:
        mean: Geometric mean, in the study's unit.
        variation: Coefficient of variation of the repetitions, or None if there is only one.
        speedup: Typical value over the rounds, like ``efficiency``.
        efficiency: Typical value over the rounds: the pseudomedian (``hidl_workloads.repetitions``), which is robust to
            outliers.
        repetitions_needed: Estimated number of repetitions that would settle the step, if it is too noisy for a
            verdict.
    """

    n: int
    repetitions: int
    mean: float
    variation: float | None
    speedup: float
    ideal_speedup: float
    efficiency: float
    interval: Interval | None
    verdict: Verdict | None
    reason: str
    hint: str | None
    repetitions_needed: int | None


@dataclass(frozen=True, slots=True)
class NodeSpeed:
    """The speed of a node, measured by concurrent copies over all rounds.

    Attributes:
        relative: Speed relative to the median node: 0.9 means 10 % slower.
        p: Probability that the slowest of the same number of equal nodes is at least this far behind by chance.
        slow: Whether ``p`` is below 1 % and the node is at least 3 % behind.
    """

    host: str
    relative: float
    p: float | None
    slow: bool


@dataclass(frozen=True, slots=True)
class SerialFraction:
    """The serial fraction of the step of size ``n``, or of all steps together if ``n`` is None."""

    n: int | None
    value: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class SerialFit:
    """A fit of Amdahl's law (strong scaling) or Gustafson's law (weak scaling), and the serial fraction of each step.

    If ``rising``, the fractions increase with the size of the steps. In this case, the loss is not caused by a fixed
    serial part but by something that grows, such as communication. If ``rising`` is None, this is unknown.
    """

    law: Literal["amdahl", "gustafson"]
    overall: SerialFraction
    steps: tuple[SerialFraction, ...]
    rising: bool | None


@dataclass(frozen=True, slots=True)
class Study:
    """A scaling study with its verdict.

    Attributes:
        max_half_width: Precision that the user requires, or None.
        verdict: Verdict on the study, or None if only the baseline was measured.
        hint: Recommended next step.
        against: Kind of baseline.
        confidence: Confidence level of each interval (``repetitions.confidence``).
        nodes: Speeds of the nodes, measured by copies.
        reference: Sentence about earlier or published results to compare with.
    """

    kind: Kind
    target: float
    metric: str
    unit: str
    step_unit: str
    max_half_width: float | None
    observations: tuple[Observation, ...]
    steps: tuple[StepResult, ...]
    verdict: Verdict | None
    reason: str
    hint: str | None
    against: Baseline = "single"
    confidence: float = CONFIDENCE
    nodes: tuple[NodeSpeed, ...] = ()
    fit: SerialFit | None = None
    reference: str | None = None

    @property
    def baseline(self) -> StepResult:
        """The step with which the others are compared."""
        return self.steps[0]


def to_json(study: Study) -> dict[str, Any]:
    """Return ``study`` as a JSON-serializable dictionary for ``verdict.json``."""
    return {"schema": SCHEMA, **asdict(study)}


def from_json(document: Mapping[str, Any]) -> Study:
    """Parse a study written by ``to_json``.

    Raises:
        ValueError: If the document is invalid or has another schema.
    """
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema must be {SCHEMA!r}, not {document.get('schema')!r}")
    fields = {name: value for name, value in document.items() if name != "schema"}
    try:
        fields["observations"] = tuple(
            Observation(**{**observation, "hosts": tuple(observation.get("hosts", ()))})
            for observation in fields["observations"]
        )
        fields["steps"] = tuple(StepResult(**_with_interval(step)) for step in fields["steps"])
        fields["nodes"] = tuple(NodeSpeed(**node) for node in fields.get("nodes", ()))
        fields["fit"] = _fit(fields["fit"]) if fields.get("fit") else None
        return Study(**fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"invalid {SCHEMA} document: {error}") from error


def _fit(fit: Mapping[str, Any]) -> SerialFit:
    overall, *steps = (SerialFraction(**_with_interval(each)) for each in (fit["overall"], *fit["steps"]))
    return SerialFit(fit["law"], overall, tuple(steps), fit["rising"])


def _with_interval(values: Mapping[str, Any]) -> dict[str, Any]:
    interval = values["interval"]
    return {**values, "interval": Interval(**interval) if interval else None}


# Slow nodes, detected with copies of a program that run concurrently on all nodes.


LEAST_NODES = 4  # of three equally fast nodes, two are often so close to each other by chance that the third seems slow
LEAST_BEHIND = 0.03  # smaller deficits are not worth reporting
SLOW = 0.01  # false-positive rate: fraction of sets of equally fast nodes in which one is reported as slow
_SIMULATED = 5_000
_PASSES = 10
_QUANTILES = 4000


def nodes(
    rates: Mapping[int, Mapping[str, float]], *, medians_of: int = 1, digits: float | None = None
) -> tuple[NodeSpeed, ...]:
    """Return the speed of each host, starting with the slowest.

    The speed of a host is the median of its rates relative to those of all hosts in the same round; values may be
    missing. Its distance from the median host is measured in median absolute deviations of all hosts. This distance is
    compared with simulated distances of the slowest host among the same number of equal hosts with heavy-tailed noise,
    which corrects for multiple comparisons. Hosts with fewer values have less weight. If there are fewer than four
    hosts, none is reported as slow. The deviation is at least the rounding error, so that a host that differs only in
    the last digit is not slow if most hosts have exactly the same value.

    Args:
        rates: Rates by round and host; higher is better.
        medians_of: Number of measured values of which each rate is the median.
        digits: Rounding error of the logarithms (``repetitions.rounding``; default: that of ``rates``). It is required
            if the rates are inverted times, whose digits differ from the printed ones.
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
    """Return the logarithmic rate of each host, with the levels of the rounds removed by median polish.

    A single pass is sufficient if no value is missing. Otherwise, the level of a round depends on its hosts.
    """
    of_round: dict[int, list[str]] = {}
    of_host: dict[str, list[int]] = {host: [] for host in hosts}
    for round_, host in logs:
        of_round.setdefault(round_, []).append(host)
        of_host[host].append(round_)
    behind = dict.fromkeys(hosts, 0.0)
    is_complete = len(logs) == len(of_round) * len(hosts)
    for _ in range(1 if is_complete else _PASSES):
        levels = {r: median(logs[r, host] - behind[host] for host in present) for r, present in of_round.items()}
        behind = {host: median(logs[r, host] - levels[r] for r in rounds) for host, rounds in of_host.items()}
    return behind


def _node(host: str, log: float, weight: float, deviation: float, farthest: NDArray[Any] | None) -> NodeSpeed:
    if farthest is None:
        return NodeSpeed(host, math.exp(log), None, False)
    import numpy as np

    p = float(np.mean(farthest >= -log * weight / deviation))
    return NodeSpeed(host, math.exp(log), p, p < SLOW and math.exp(log) <= 1 - LEAST_BEHIND)


@lru_cache(maxsize=32)
def _farthest(hosts: int, values: int) -> NDArray[Any] | None:
    """Simulate how far the slowest of several equally fast hosts is from the median host.

    The result is in median absolute deviations, or None if there are too few hosts. ``values`` is the number of values
    whose median is the rate of a host.
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
    """Draw medians, each of ``values`` random numbers from Student's t distribution with 3 degrees of freedom.

    Times on shared machines have such heavy tails. With a limit for normal noise, one node is reported as slow in 3.4 %
    instead of 1 % of all sets of 16 equal nodes. The median of an even number of values has the same tails as the
    median of one value fewer.
    """
    import numpy as np

    rank = (values - 1) // 2 + 1  # the probability of this order statistic has a beta distribution
    tangents = np.sinh(np.linspace(-12, 12, _QUANTILES))
    probabilities = 0.5 + (np.arctan(tangents) + tangents / (1 + tangents**2)) / math.pi
    quantiles: NDArray[Any] = np.interp(random.beta(rank, rank, shape), probabilities, tangents * math.sqrt(3))
    return quantiles


# The baselines of a study: its smallest step, concurrent copies, or earlier runs.


LEAST_EARLIER = 5  # minimum number of earlier runs; fewer do not show how much results vary from night to night


@dataclass(frozen=True)
class Earlier:
    """Earlier results of the baseline.

    Attributes:
        step: Size of the baseline in ranks or nodes.
        values: One value per run, in the study's unit.
        printed: Values of all repetitions, whose means are ``values`` (default: ``values`` themselves).
    """

    step: int
    values: tuple[float, ...]
    printed: tuple[float, ...] = ()


@dataclass(frozen=True)
class Efficiencies:
    """The logarithms of a step's efficiencies, one for each complete round.

    Attributes:
        missing: The (step, round) pairs of missing values.
        reference: Logarithms of earlier baselines minus their typical value, if the rounds have no baseline.
        margin: Rounding error of the logarithms (``repetitions.rounding``).
    """

    logs: tuple[float, ...]
    missing: tuple[tuple[int, int], ...] = ()
    reference: tuple[float, ...] = ()
    margin: float = 0.0

    def interval(self, steps: int, rounds: int | None) -> Interval | None:
        """Return the confidence interval of the logarithms' typical value, or None if values are missing or too few.

        ``steps`` and ``rounds`` have the same meaning as in ``repetitions.interval``. The uncertainty of earlier runs
        is added in quadrature (Zou and Donner 2008, Statistics in Medicine 27, 1693-1702).
        """
        found = None if self.missing else interval(self.logs, steps=steps, rounds=rounds)
        before = self.before(steps)
        if not found or not before:
            return None
        level = typical(self.logs)
        low = level - math.hypot(level - found.low, before.high) - self.margin
        return Interval(low, level + math.hypot(found.high - level, before.low) + self.margin)

    def before(self, steps: int) -> Bounds | None:
        """Return the confidence interval of ``reference``, or None if all earlier runs have exactly the same value.

        Both bounds are 0 if the baseline does not consist of earlier runs.
        """
        return interval(self.reference, steps=steps) if self.reference else Bounds(0.0, 0.0)


class SingleBaseline:
    """A baseline that is the smallest step of the study."""

    def __init__(self, observations: Sequence[Observation], sign: int) -> None:
        self.n = min(observation.step for observation in observations)
        self._rounds = sorted({observation.round for observation in observations})
        self.printed = tuple(o.value for o in observations if o.step == self.n)
        self._rates = {o.round: sign * math.log(o.value) for o in observations if o.step == self.n}

    def efficiencies(self, n: int, rates: Mapping[int, float], _: Mapping[int, tuple[str, ...]]) -> Efficiencies:
        """Return the efficiencies of the step of size ``n``, given its logarithmic ``rates`` by round."""
        ideal = math.log(n / self.n)
        logs = tuple(rates[r] - self._rates[r] - ideal for r in rates if r in self._rates)
        missing = [
            (step, r) for r in self._rounds for step, found in ((self.n, self._rates), (n, rates)) if r not in found
        ]
        return Efficiencies(logs, tuple(missing))


class CopiesBaseline:
    """A baseline of concurrent copies, one per node. A larger step that reaches their total rate has efficiency 1."""

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
        """Return the efficiencies of the step of size ``n``.

        They are relative to the copies on the step's hosts if these are known, and to the average copy otherwise.
        """
        logs, missing = [], []
        for r in self._rounds:
            copies = self.by_round[r]
            if len(copies) < len(self._hosts):
                missing.append((self.n, r))
            if r not in rates:
                missing.append((n, r))
            elif len(copies) == len(self._hosts):
                logs.append(rates[r] - math.log(self._limit(n, copies, hosts.get(r, ()))))
        return Efficiencies(tuple(logs), tuple(missing))

    def _limit(self, n: int, copies: Mapping[str, float], hosts: tuple[str, ...]) -> float:
        if len(hosts) * self.n == n and self._hosts.issuperset(hosts):
            return math.fsum(copies[host] for host in hosts)
        return fmean(copies.values()) * n / self.n


class HistoryBaseline:
    """A baseline of earlier runs, all from a single series."""

    def __init__(self, earlier: Earlier, observations: Sequence[Observation], sign: int) -> None:
        self.n = earlier.step
        self._rounds = sorted({observation.round for observation in observations})
        self.values = earlier.values
        self.printed = earlier.printed or earlier.values
        self._logs = tuple(sign * math.log(value) for value in earlier.values)

    def efficiencies(self, n: int, rates: Mapping[int, float], _: Mapping[int, tuple[str, ...]]) -> Efficiencies:
        """Return the efficiencies of the step of size ``n``, including the variation of the earlier runs."""
        center = typical(self._logs)
        level = center + math.log(n / self.n)
        missing = tuple((n, r) for r in self._rounds if r not in rates)
        centred = tuple(log - center for log in self._logs)
        return Efficiencies(tuple(rate - level for rate in rates.values()), missing, centred)


def earlier(samples: Iterable[Sample], metric: str, *, step: int, before: str | None = None) -> Earlier:
    """Return the results of earlier runs: the geometric mean of each run's repetitions, in chronological order.

    Args:
        samples: Samples of the baseline's series.
        metric: Name of the metric.
        step: Size of the baseline in ranks or nodes.
        before: Name of a run to exclude.

    Raises:
        ValueError: If fewer than five runs have the metric, the samples belong to several series, or a value is not
            positive.
    """
    runs = by_measure(sample for sample in samples if sample.metric == metric and sample.run != before)
    if len(runs) > 1:
        raise ValueError(f"the values for {metric} are from {len(runs)} series; a baseline requires a single series")
    found = [run for series in runs.values() for run in series]
    for run in found:
        if min(run.values) <= 0:
            raise ValueError(f"{metric} was {min(run.values):g} in run {run.sample.run}; a baseline must be positive")
    values = tuple(geometric_mean(run.values) for run in found)
    if len(values) < LEAST_EARLIER:
        raise ValueError(f"{len(values)} earlier run(s) measured {metric}; a baseline requires {LEAST_EARLIER}")
    return Earlier(step, values, tuple(value for run in found for value in run.values))


AnyBaseline = SingleBaseline | CopiesBaseline | HistoryBaseline


# Cold starts: the first round is slow because caches, clocks or connections were not ready.


LEAST_ROUNDS = 4  # with three rounds, the spread of the other two is too uncertain
COLD = 0.01  # false-positive rate: fraction of studies without a cold round in which one is reported
_SIMULATED_OF_COLD_START = 100_000


def cold_rounds(observations: Sequence[Observation], sign: int) -> Iterator[str]:
    """Yield a note if the first round of any step was slower than can be explained by noise.

    ``sign`` is 1 if higher values are better and -1 if lower values are better.
    """
    steps = sorted({observation.step for observation in observations})
    cold = [step for step in steps if _cold(_logs(observations, step, sign), COLD / len(steps))]
    if cold:
        sizes = ", ".join(map(str, cold))
        yield f"the first round was slower than the others (at {sizes}), possibly due to a cold start: warm up longer"


def _logs(observations: Sequence[Observation], step: int, sign: int) -> list[float]:
    """Return the logarithmic rate of each round, averaged over copies."""
    rounds: dict[int, list[float]] = {}
    for observation in sorted(observations, key=lambda o: o.round):
        if observation.step == step:
            rounds.setdefault(observation.round, []).append(sign * math.log(observation.value))
    return [fmean(logs) for logs in rounds.values()]


def _cold(logs: Sequence[float], level: float) -> bool:
    first, rest = logs[:1], logs[1:]
    if len(logs) < LEAST_ROUNDS or (spread := stdev(rest)) == 0:
        return False
    return (first[0] - fmean(rest)) / spread < _limit(len(logs), level)


@lru_cache(maxsize=64)
def _limit(rounds: int, level: float) -> float:
    """Simulate how far the first of several equal rounds may be below the others before it counts as a cold start.

    The limit is in standard deviations of the other rounds. The noise is Student's t with 3 degrees of freedom. With a
    limit for normal noise, a cold round is reported in 2.5 % instead of 1 % of studies with heavy tails.
    """
    import numpy as np

    values = np.random.default_rng(0).standard_t(3, (_SIMULATED_OF_COLD_START, rounds))
    distances = (values[:, 0] - values[:, 1:].mean(axis=1)) / values[:, 1:].std(axis=1, ddof=1)
    return float(np.quantile(distances, level))


# Serial fractions: the Karp-Flatt metric of each step, and Amdahl's or Gustafson's law for all steps.


def fit(
    kind: Kind, steps: Sequence[StepResult], logs: Mapping[int, Sequence[float]], most: int | None
) -> SerialFit | None:
    """Return the serial fractions of each step and of all steps together, or None for fewer than two steps.

    The interval of a step follows from that of its efficiency. The law is fitted to each round by least squares. The
    typical value over the rounds has the same kind of interval as an efficiency.

    Args:
        kind: Kind of scaling.
        steps: Results of all steps, of which those not larger than the baseline are ignored.
        logs: Logarithmic efficiencies of each step by round.
        most: Maximum number of rounds, as in ``rounds`` of ``judge``.
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
    return SerialFit("amdahl" if kind == "strong" else "gustafson", overall, by_step, rising)


def fraction(kind: Kind, p: float, efficiency: float) -> float:
    """Return the serial fraction at ``p`` times the baseline's size (the Karp-Flatt metric for strong scaling)."""
    return (1 / efficiency - 1) / (p - 1) if kind == "strong" else (1 - efficiency) * p / (p - 1)


def _of_step(kind: Kind, step: StepResult) -> SerialFraction:
    p, found = step.ideal_speedup, step.interval
    ends = Interval(fraction(kind, p, found.high), fraction(kind, p, found.low)) if found else None
    return SerialFraction(step.n, fraction(kind, p, step.efficiency), ends)


def _of_round(kind: Kind, ps: Sequence[float], efficiencies: Sequence[float]) -> float:
    """Fit the lost time as a function of 1 - 1/p by least squares through the origin."""
    x = [1 - 1 / p for p in ps]
    pairs = zip(ps, efficiencies, strict=True)
    y = [(1 / e - 1) / p if kind == "strong" else 1 - e for p, e in pairs]
    return math.fsum(a * b for a, b in zip(x, y, strict=True)) / math.fsum(a * a for a in x)


# The verdict: the efficiency of each step relative to the baseline, compared with the target.


USUAL_REPETITIONS = 5
MANY_REPETITIONS = 50  # more repetitions are not recommended; reduce the noise or change the target instead


def judge(
    *,
    kind: Kind,
    target: float,
    metric: str,
    unit: str,
    step_unit: str,
    observations: Sequence[Observation],
    max_half_width: float | None = None,
    earlier: Earlier | None = None,
    rounds: int | None = None,
    better: Literal["higher", "lower"] | None = None,
) -> Study:
    """Judge how well a workload scales.

    The baseline is ``copies`` if there are any, ``history`` if there are only ``earlier`` values, and the smallest step
    (``single``) otherwise. A step passes if the whole interval of its efficiency reaches the target, and fails if the
    whole interval is below it. It is inconclusive if the interval includes the target, is wider than
    ``±max_half_width`` of the efficiency, or cannot be computed. The study fails if any step fails, and passes if all
    steps pass.

    Args:
        kind: Kind of scaling.
        target: Required efficiency.
        metric: Name of the metric.
        unit: Unit of the values.
        step_unit: Unit of the steps: ``ranks`` or ``nodes``.
        observations: All measurements.
        max_half_width: Required precision as a fraction of the efficiency.
        earlier: Results of earlier runs, used as the baseline.
        rounds: Maximum number of rounds if the study could have stopped after each of them, or None if their number is
            fixed.
        better: Direction of the metric (default: ``higher`` for weak scaling and ``lower`` for strong scaling).

    Raises:
        ValueError: If there are no observations, a value is not positive and finite, a step has two values in one
            round, a step has the size of the copies or the history, or a copy has no host.
    """
    _check(target, observations)
    sign = 1 if (better or {"weak": "higher", "strong": "lower"}[kind]) == "higher" else -1
    baseline = _baseline(observations, earlier, sign)
    measured = _by_step(observations)
    scaled = {n: values for n, values in measured.items() if n != baseline.n}
    if not isinstance(baseline, SingleBaseline) and len(scaled) < len(measured):
        raise ValueError(f"the step of size {baseline.n} is the baseline and cannot be compared with itself")
    found = {
        n: replace(
            baseline.efficiencies(
                n,
                {r: sign * math.log(value) for r, value in values.items()},
                {o.round: o.hosts for o in observations if o.step == n and o.kind == "step"},
            ),
            margin=rounding(list(values.values()), baseline.printed),
        )
        for n, values in scaled.items()
    }
    first = _baseline_step(baseline.n, _baseline_values(baseline, measured, sign))
    confidence = confidence_for(len(scaled), rounds or max(map(len, measured.values()), default=0))
    rules = _Rules(target, step_unit, max_half_width, len(scaled), rounds, first, sign, confidence)
    steps = (first, *(_step(n, scaled[n], found[n], rules) for n in scaled))
    verdict, reason, hint = _conclude(steps, step_unit)
    of_copies = (
        nodes(baseline.by_round, digits=rounding(baseline.printed)) if isinstance(baseline, CopiesBaseline) else ()
    )
    notes = [*_slow(of_copies), *cold_rounds(observations, sign)] if verdict in ("fail", "inconclusive") else []
    paired = not isinstance(baseline, HistoryBaseline) and not any(each.missing for each in found.values())
    return Study(
        kind=kind,
        target=target,
        metric=metric,
        unit=unit,
        step_unit=step_unit,
        max_half_width=max_half_width,
        observations=tuple(sorted(observations, key=lambda o: (o.round, o.step, o.kind, o.hosts))),
        steps=steps,
        verdict=verdict,
        reason="; ".join([reason, *notes]),
        hint=hint,
        against={SingleBaseline: "single", CopiesBaseline: "copies", HistoryBaseline: "history"}[type(baseline)],  # type: ignore[arg-type]
        confidence=confidence,
        nodes=of_copies,
        fit=fit(kind, steps, {n: each.logs for n, each in found.items()}, rounds) if paired else None,
    )


def _baseline(observations: Sequence[Observation], earlier: Earlier | None, sign: int) -> AnyBaseline:
    if any(observation.kind == "copy" for observation in observations):
        return CopiesBaseline(observations, sign)
    return HistoryBaseline(earlier, observations, sign) if earlier else SingleBaseline(observations, sign)


def _baseline_values(baseline: AnyBaseline, measured: Mapping[int, Mapping[int, float]], sign: int) -> list[float]:
    """Return the baseline's values in the study's unit, one per round or per earlier run."""
    if isinstance(baseline, SingleBaseline):
        return list(measured[baseline.n].values())
    if isinstance(baseline, HistoryBaseline):
        return list(baseline.values)
    return [fmean(copies.values()) ** sign for copies in baseline.by_round.values() if copies]


def _check(target: float, observations: Sequence[Observation]) -> None:
    if not observations:
        raise ValueError("a scaling study requires observations")
    if not (math.isfinite(target) and target > 0):
        raise ValueError(f"the target efficiency must be positive and finite, not {target}")
    if len({observation.step for observation in observations if observation.kind == "copy"}) > 1:
        raise ValueError("all copies must have the same size")
    seen: set[tuple[int, int, str]] = set()
    for observation in observations:
        if not (math.isfinite(observation.value) and observation.value > 0 and observation.step > 0):
            raise ValueError(f"step and value must be positive and finite: {observation}")
        copy = observation.kind == "copy"
        if copy and len(observation.hosts) != 1:
            raise ValueError(f"a copy must run on exactly one host: {observation}")
        key = (observation.step, observation.round, observation.hosts[0] if copy else "")
        if key in seen:
            on = f" on {key[2]}" if copy else ""
            raise ValueError(f"step {observation.step} has more than one value in round {observation.round}{on}")
        seen.add(key)


def _by_step(observations: Sequence[Observation]) -> dict[int, dict[int, float]]:
    """Return the values by step and round, both in ascending order, excluding concurrent copies."""
    by_step: dict[int, dict[int, float]] = {}
    for observation in sorted(observations, key=lambda o: (o.step, o.round)):
        if observation.kind == "step":
            by_step.setdefault(observation.step, {})[observation.round] = observation.value
    return by_step


def _slow(found: Sequence[NodeSpeed]) -> list[str]:
    """Return a note that lists the slow nodes, or nothing if there are none."""
    slow = [f"{node.host} ({1 - node.relative:.0%} behind the median node)" for node in found if node.slow]
    return [f"slow {'node' if len(slow) == 1 else 'nodes'}: {', '.join(slow)}"] if slow else []


class _Rules(NamedTuple):
    """The criteria for all steps of a study."""

    target: float
    step_unit: str
    max_half_width: float | None
    steps: int
    rounds: int | None
    baseline: StepResult
    sign: int
    confidence: float


def _baseline_step(n: int, values: Sequence[float]) -> StepResult:
    mean, variation = geometric_mean(values), coefficient_of_variation(values)
    return StepResult(n, len(values), mean, variation, 1.0, 1.0, 1.0, None, None, "the baseline", None, None)


def _step(n: int, values: Mapping[int, float], found: Efficiencies, rules: _Rules) -> StepResult:
    ideal = n / rules.baseline.n
    mean = geometric_mean(values.values())
    log_interval = found.interval(rules.steps, rules.rounds)
    # With three values that differ by orders of magnitude, the upper bound can exceed the range of a float.
    interval = Interval(math.exp(log_interval.low), math.exp(min(log_interval.high, 700))) if log_interval else None
    # If values are missing, the remaining ones still yield an efficiency, but no verdict.
    efficiency = (mean / rules.baseline.mean) ** rules.sign / ideal if found.missing else math.exp(typical(found.logs))
    if found.missing:
        judgement = _incomplete(found.missing, n, rules.step_unit)
    else:
        judgement = _judge(found, interval, name=_count(n, rules.step_unit), rules=rules)
    return StepResult(
        n=n,
        repetitions=len(values),
        mean=mean,
        variation=coefficient_of_variation(list(values.values())),
        speedup=efficiency * ideal,
        ideal_speedup=ideal,
        efficiency=efficiency,
        interval=interval,
        **judgement._asdict(),
    )


class _Judgement(NamedTuple):
    verdict: Verdict | None
    reason: str
    hint: str | None = None
    repetitions_needed: int | None = None


def _incomplete(missing: Sequence[tuple[int, int]], n: int, step_unit: str) -> _Judgement:
    """Judge a step as inconclusive because values (possibly slow ones) of the step or its baseline are missing."""
    listed = [f"{_count(step, step_unit)} in round {r}" for step, r in missing]
    reason = f"{_count(n, step_unit)}: no value for {', '.join(listed)}"
    return _Judgement("inconclusive", reason, "check why these runs have no value, then measure again")


def _judge(found: Efficiencies, interval: Interval | None, *, name: str, rules: _Rules) -> _Judgement:
    """Return the verdict on one step, based on the interval of its efficiency."""
    logs, n, target, max_half_width = found.logs, len(found.logs), rules.target, rules.max_half_width
    if n < MIN_REPETITIONS:
        reason = f"{name}: too few repetitions for an interval ({n} of at least {MIN_REPETITIONS})"
        return _Judgement("inconclusive", reason, f"measure again with --repeat {USUAL_REPETITIONS}", USUAL_REPETITIONS)
    if interval is None:
        reason = f"{name}: all {n} repetitions have exactly the same efficiency, which is implausible for measurements"
        hint = "measure longer or with more digits, and check that each repetition really measures"
        return _Judgement("inconclusive", reason, hint)
    efficiency = math.exp(typical(logs))
    precision = half_width(Bounds(math.log(max(interval.low, 1e-300)), math.log(interval.high)))
    level = f"{rules.confidence * 100:.3g} %"
    result = f"{name}: efficiency {efficiency:.3f} ({level} interval {interval.low:.3f} to {interval.high:.3f})"
    if max_half_width is not None and precision > max_half_width:
        reason = f"{result} is known to {precision * 100:.1f} %; --precision requires {max_half_width * 100:g} %"
        return _undecided(reason, found, math.asinh(max_half_width), math.asinh(max_half_width), rules)
    if interval.low >= target:
        return _Judgement("pass", f"{result} reaches the target {target:.3f}")
    if interval.high < target:
        return _Judgement("fail", f"{result} is below the target {target:.3f}")
    distance = math.log(target / efficiency)
    reason = f"{result} cannot be distinguished from the target {target:.3f}"
    return _undecided(reason, found, max(-distance, 0.0), max(distance, 0.0), rules)


def _undecided(reason: str, found: Efficiencies, down: float, up: float, rules: _Rules) -> _Judgement:
    """Return an inconclusive judgement on a step whose interval is too wide, with a hint about the cause.

    The cause is the number of digits, the earlier runs or the noise.

    Args:
        reason: One-sentence description of the result.
        found: Efficiencies of the step, which have an interval.
        down: Half-width below the efficiency that would settle the step, or 0 if only the other side matters.
        up: Half-width above the efficiency that would settle the step.
        rules: Criteria of the study.
    """
    before, n, spread = found.before(rules.steps) or Bounds(0.0, 0.0), len(found.logs), stdev(found.logs)
    # The bounds of the earlier runs are swapped, because a low baseline results in a high efficiency. If both sides of
    # the interval matter, the mean of their half-widths is used.
    sides = [(down, before.high), (up, -before.low)]
    used = [(limit, part) for limit, part in sides if limit > 0] or sides
    limit = max(fmean(limit for limit, _ in used), spread / 100)  # a smaller limit requires too many repetitions
    earlier = fmean(part for _, part in used)
    remaining = limit - found.margin
    if remaining <= 0:
        hint = f"rounding alone causes an error of ±{math.sinh(found.margin):.1%}: measure longer or print more digits"
        return _Judgement("inconclusive", reason, hint)
    if remaining <= earlier:
        hint = (
            f"the earlier runs are only known to ±{math.sinh(earlier):.1%}, so more repetitions do not help: "
            "use --baseline single, or first measure the baseline more often"
        )
        return _Judgement("inconclusive", reason, hint)
    confidence = required_confidence(rules.steps, rules.rounds)
    needed = repetitions_needed(spread, math.sqrt(remaining**2 - earlier**2), confidence=confidence)
    return _more_repetitions(reason, n, max(needed, n + 1))


def _more_repetitions(reason: str, n: int, needed: int) -> _Judgement:
    """Return an inconclusive judgement on a step that is too noisy, with a hint about the repetitions required."""
    less_noise = "use exclusive nodes, bound ranks or more timed steps to reduce the noise"
    if needed > MANY_REPETITIONS:
        hint = f"about {needed} repetitions (now {n}) would be required; {less_noise} instead"
    else:
        hint = f"about {needed} repetitions (now {n}) are probably enough: use --repeat {needed}, or {less_noise}"
    return _Judgement("inconclusive", reason, hint, needed)


def _conclude(steps: Sequence[StepResult], step_unit: str) -> tuple[Verdict | None, str, str | None]:
    """Return the study's verdict, reason and hint, given its steps (the first one is the baseline)."""
    scaled = steps[1:]
    if not scaled:
        reason = f"nothing to compare: only the step of {_count(steps[0].n, step_unit)} was measured"
        return None, reason, "measure at least two steps, for example --scale 1,2"
    verdicts: tuple[Verdict, ...] = ("fail", "inconclusive", "pass")
    verdict = next(verdict for verdict in verdicts if any(step.verdict == verdict for step in scaled))
    deciding = [step for step in scaled if step.verdict == verdict]
    if verdict == "inconclusive":  # problems that repetitions cannot fix come first
        worst = max(deciding, key=lambda step: step.repetitions_needed or math.inf)
    else:
        worst = min(deciding, key=lambda step: step.interval.low if step.interval else 0.0)
    if len(scaled) == 1:
        return verdict, worst.reason, worst.hint
    summary = {
        "fail": f"{len(deciding)} of {len(scaled)} steps below the target; the lowest is",
        "inconclusive": f"{len(deciding)} of {len(scaled)} steps undecided; the hardest is",
        "pass": f"all {len(scaled)} steps pass; the lowest is",
    }
    return verdict, f"{summary[verdict]} {worst.reason}", worst.hint


def _count(n: int, unit: str) -> str:
    """Format a count with its unit, in the singular for 1."""
    return f"{n} {unit.removesuffix('s') if n == 1 else unit}"
