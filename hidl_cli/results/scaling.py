"""How well a workload scales: efficiency of each step against the smallest one, and the verdict on a study.

::

    weak    E(N) = X(N)·N0 / (N·X(N0))    X: throughput of the N ranks (or nodes) together
    strong  E(N) = T(N0)·N0 / (N·T(N))    T: time for the same work

The steps of one round run close in time, so E is computed round by round: what drifts slowly cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, geometric_mean, stdev
from typing import Any, Literal, NamedTuple

from hidl_cli.results.statistics import (
    MIN_REPETITIONS,
    Interval,
    coefficient_of_variation,
    mean_interval,
    repetitions_needed,
)

SCHEMA = "hidl.verdict/1"
USUAL_REPETITIONS = 5
MANY_REPETITIONS = 50  # more than this is no advice: the noise or the target has to change

Kind = Literal["weak", "strong"]
Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One measurement: ``value`` (throughput for weak, time for strong scaling) at ``step`` ranks in ``round``."""

    step: int
    round: int
    value: float


@dataclass(frozen=True, slots=True)
class Step:
    """What the repetitions of one step show; the baseline has efficiency 1, no interval and no verdict.

    ``mean`` is geometric, in the study's unit, so that ``speedup`` and ``efficiency`` are ratios of means.
    ``variation`` is the coefficient of variation of the repetitions, None for a single one. ``repetitions_needed`` is
    how many would probably settle a step that is inconclusive for its noise.
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
class Study:
    """A scaling study, judged. ``verdict`` is None where there is only a baseline; ``hint`` is the next thing to do."""

    kind: Kind
    target: float
    metric: str
    unit: str
    step_unit: str
    max_half_width: float
    observations: tuple[Observation, ...]
    steps: tuple[Step, ...]
    verdict: Verdict | None
    reason: str
    hint: str | None

    @property
    def baseline(self) -> Step:
        """The smallest step, which the others are compared with."""
        return self.steps[0]


def judge(
    *,
    kind: Kind,
    target: float,
    metric: str,
    unit: str,
    step_unit: str,
    observations: Sequence[Observation],
    max_half_width: float = 0.10,
) -> Study:
    """Return the study of ``observations``, judged against the efficiency ``target``.

    A step passes where the whole 95 % interval of its efficiency lies at or above the target, fails where it lies
    below, and is inconclusive where it includes the target, is wider than ``±max_half_width`` of the efficiency or
    cannot be computed. The study fails with any step, and passes with all of them. ``ValueError`` for a value that is
    not positive and finite, for two values of one step and round, and for no observation at all.
    """
    _check(target, observations)
    by_step = _by_step(observations)
    rounds = {observation.round for observation in observations}
    steps = tuple(
        _step(n, by_step, rounds, kind=kind, target=target, step_unit=step_unit, max_half_width=max_half_width)
        for n in by_step
    )
    verdict, reason, hint = _conclude(steps, step_unit)
    ordered = tuple(sorted(observations, key=lambda o: (o.round, o.step)))
    return Study(kind, target, metric, unit, step_unit, max_half_width, ordered, steps, verdict, reason, hint)


def to_json(study: Study) -> dict[str, Any]:
    """Return ``study`` as plain values for ``verdict.json``."""
    return {"schema": SCHEMA, **asdict(study)}


def from_json(document: Mapping[str, Any]) -> Study:
    """Return the study that ``to_json`` wrote, as it was judged then; ``ValueError`` for any other document."""
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema is {document.get('schema')!r}, not {SCHEMA!r}")
    fields = {name: value for name, value in document.items() if name != "schema"}
    try:
        fields["observations"] = tuple(Observation(**observation) for observation in fields["observations"])
        fields["steps"] = tuple(_step_from_json(step) for step in fields["steps"])
        return Study(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no valid {SCHEMA} document: {error}") from error


def _step_from_json(step: Mapping[str, Any]) -> Step:
    interval = step["interval"]
    return Step(**{**step, "interval": Interval(**interval) if interval else None})


def _check(target: float, observations: Sequence[Observation]) -> None:
    if not observations:
        raise ValueError("a scaling study without observations cannot be judged")
    if not (math.isfinite(target) and target > 0):
        raise ValueError(f"the target efficiency must be positive and finite, not {target}")
    seen: set[tuple[int, int]] = set()
    for observation in observations:
        if not (math.isfinite(observation.value) and observation.value > 0 and observation.step > 0):
            raise ValueError(f"step and value must be positive and finite: {observation}")
        if (observation.step, observation.round) in seen:
            raise ValueError(f"step {observation.step} has more than one value in round {observation.round}")
        seen.add((observation.step, observation.round))


def _by_step(observations: Sequence[Observation]) -> dict[int, dict[int, float]]:
    """Step -> round -> value, both in ascending order."""
    by_step: dict[int, dict[int, float]] = {}
    for observation in sorted(observations, key=lambda o: (o.step, o.round)):
        by_step.setdefault(observation.step, {})[observation.round] = observation.value
    return by_step


def _step(
    n: int,
    by_step: Mapping[int, Mapping[int, float]],
    all_rounds: set[int],
    *,
    kind: Kind,
    target: float,
    step_unit: str,
    max_half_width: float,
) -> Step:
    n0 = min(by_step)
    values, baseline = by_step[n], by_step[n0]
    ideal = n / n0
    sign = 1 if kind == "weak" else -1
    logs = [sign * (math.log(values[r]) - math.log(baseline[r])) - math.log(ideal) for r in values if r in baseline]
    missing = sorted(all_rounds - (values.keys() & baseline.keys()))
    log_interval = None if missing or n == n0 else mean_interval(logs)
    interval = Interval(math.exp(log_interval.low), math.exp(log_interval.high)) if log_interval else None
    if n == n0:
        judgement = _Judgement(None, "the baseline")
    elif missing:
        judgement = _incomplete(missing, n, by_step, step_unit)
    else:
        judgement = _judge(logs, interval, target=target, name=_count(n, step_unit), max_half_width=max_half_width)
    mean = geometric_mean(values.values())
    speedup = (mean / geometric_mean(baseline.values())) ** sign
    return Step(
        n=n,
        repetitions=len(values),
        mean=mean,
        variation=coefficient_of_variation(list(values.values())),
        speedup=speedup,
        ideal_speedup=ideal,
        efficiency=speedup / ideal,
        interval=interval,
        **judgement._asdict(),
    )


class _Judgement(NamedTuple):
    verdict: Verdict | None
    reason: str
    hint: str | None = None
    repetitions_needed: int | None = None


def _incomplete(missing: list[int], n: int, by_step: Mapping[int, Mapping[int, float]], step_unit: str) -> _Judgement:
    """The judgement of a step that lacks a round, or whose baseline does: what was lost may have been the slow ones."""
    lost = [
        f"{_count(step, step_unit)} in round {r}"
        for r in missing
        for step in (min(by_step), n)
        if r not in by_step[step]
    ]
    reason = f"{_count(n, step_unit)}: no value for {', '.join(lost)}"
    return _Judgement("inconclusive", reason, "find out why these runs gave no value, and measure the rounds again")


def _judge(
    logs: list[float], interval: Interval | None, *, target: float, name: str, max_half_width: float
) -> _Judgement:
    """Hold the interval of one step's efficiency, whose logarithms by round are ``logs``, against the target."""
    n = len(logs)
    if n < MIN_REPETITIONS:
        reason = f"{name}: {_count(n, 'repetitions')} cannot give an interval, {MIN_REPETITIONS} are the least"
        return _Judgement("inconclusive", reason, f"measure again with --repeat {USUAL_REPETITIONS}", USUAL_REPETITIONS)
    if interval is None:
        reason = f"{name}: all {n} repetitions give the same efficiency to the last digit, which no measured rate does"
        return _Judgement(
            "inconclusive", reason, "measure with more digits or longer, and check that every run measures"
        )
    efficiency, spread = math.exp(fmean(logs)), stdev(logs)
    half_width = (interval.high - interval.low) / (2 * efficiency)
    found = f"{name}: efficiency {efficiency:.3f} (95 % interval {interval.low:.3f} to {interval.high:.3f})"
    if half_width > max_half_width:
        reason = f"{found} is known to {half_width * 100:.1f} % only; to be judged it takes {max_half_width * 100:g} %"
        return _more_repetitions(reason, n, repetitions_needed(spread, math.asinh(max_half_width)))
    if interval.low >= target:
        return _Judgement("pass", f"{found} reaches the target {target:.3f}")
    if interval.high < target:
        return _Judgement("fail", f"{found} lies below the target {target:.3f}")
    margin = max(abs(math.log(efficiency / target)), spread / 100)  # closer than that, nobody repeats often enough
    return _more_repetitions(
        f"{found} cannot be told from the target {target:.3f}", n, repetitions_needed(spread, margin)
    )


def _more_repetitions(reason: str, n: int, needed: int) -> _Judgement:
    """The judgement of a step that more repetitions would settle, or would not within reason."""
    needed = max(needed, n + 1)
    less_noise = "exclusive nodes, bound ranks or more timed steps lower the noise"
    if needed > MANY_REPETITIONS:
        hint = f"about {needed} repetitions (now {n}) would be needed, too many to be worth it: {less_noise}"
    else:
        hint = f"about {needed} repetitions (now {n}) are probably enough: --repeat {needed}; {less_noise}"
    return _Judgement("inconclusive", reason, hint, needed)


def _conclude(steps: Sequence[Step], step_unit: str) -> tuple[Verdict | None, str, str | None]:
    """Verdict, reason and hint of the study, from those of its steps (the first is the baseline)."""
    scaled = steps[1:]
    if not scaled:
        reason = f"only {_count(steps[0].n, step_unit)} was measured, which leaves nothing to compare"
        return None, reason, "measure two steps or more, for example --scale 1,2"
    verdicts: tuple[Verdict, ...] = ("fail", "inconclusive", "pass")
    verdict = next(verdict for verdict in verdicts if any(step.verdict == verdict for step in scaled))
    deciding = [step for step in scaled if step.verdict == verdict]
    if verdict == "inconclusive":  # what repetitions cannot mend comes first
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
    """``1 rank``, ``2 ranks``."""
    return f"{n} {unit.removesuffix('s') if n == 1 else unit}"
