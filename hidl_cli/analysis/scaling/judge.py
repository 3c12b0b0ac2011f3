"""Judge how well a workload scales: the efficiency of each step against a baseline, and the verdict on the study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean, stdev
from typing import Literal, NamedTuple

from hidl_cli.analysis.nodes.slow_nodes import nodes
from hidl_cli.analysis.scaling.baselines import Copies, Earlier, Efficiencies, History, Single
from hidl_cli.analysis.scaling.cold_start import cold_rounds
from hidl_cli.analysis.scaling.serial_fraction import fit
from hidl_cli.analysis.scaling.study import (
    Kind,
    NodeSpeed,
    Observation,
    StepResult,
    Study,
    Verdict,
)
from hidl_cli.analysis.statistics import MIN_REPETITIONS, Interval, coefficient_of_variation, repetitions_needed
from hidl_workloads.repetitions import Bounds, half_width, required_confidence, rounding, typical
from hidl_workloads.repetitions import confidence as confidence_for

USUAL_REPETITIONS = 5
MANY_REPETITIONS = 50  # more than this is no advice: the noise or the target has to change


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
    """Return the study of ``observations``, judged against the efficiency ``target``.

    The baseline is ``copies`` if the observations have any, else ``history`` with ``earlier`` values, else the smallest
    step (``single``). ``rounds``: the largest number of rounds of a study that could have been stopped after each;
    None for a fixed number. ``better``: the metric's direction (None: that of a rate for weak scaling, that of a time
    for strong).

    A step passes if the whole interval of its efficiency is at or above the target, fails if it is below, and is
    inconclusive if the interval includes the target, is wider than ``±max_half_width`` of the efficiency (if given) or
    cannot be computed. The study fails with any step, and passes with all of them. ``ValueError`` for a value that is
    not positive and finite, two values of one step and round, a step of the size of copies or history, a copy without
    a host, and for no observations.
    """
    _check(target, observations)
    sign = 1 if (better or {"weak": "higher", "strong": "lower"}[kind]) == "higher" else -1
    baseline = _baseline(observations, earlier, sign)
    measured = _by_step(observations)
    scaled = {n: values for n, values in measured.items() if n != baseline.n}
    if not isinstance(baseline, Single) and len(scaled) < len(measured):
        raise ValueError(f"the step of {baseline.n} is the baseline and cannot be judged against itself")
    confidence = confidence_for(len(scaled))
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
    rules = _Rules(target, step_unit, max_half_width, len(scaled), rounds, first, sign)
    steps = (first, *(_step(n, scaled[n], found[n], rules) for n in scaled))
    verdict, reason, hint = _conclude(steps, step_unit)
    of_copies = nodes(baseline.by_round, digits=rounding(baseline.printed)) if isinstance(baseline, Copies) else ()
    notes = [*_slow(of_copies), *cold_rounds(observations, sign)] if verdict in ("fail", "inconclusive") else []
    paired = not isinstance(baseline, History) and not any(each.lacking for each in found.values())
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
        against={Single: "single", Copies: "copies", History: "history"}[type(baseline)],  # type: ignore[arg-type]
        confidence=confidence,
        nodes=of_copies,
        fit=fit(kind, steps, {n: each.logs for n, each in found.items()}, rounds) if paired else None,
    )


def _baseline(observations: Sequence[Observation], earlier: Earlier | None, sign: int) -> Single | Copies | History:
    if any(observation.kind == "copy" for observation in observations):
        return Copies(observations, sign)
    return History(earlier, observations, sign) if earlier else Single(observations, sign)


def _baseline_values(
    baseline: Single | Copies | History, measured: Mapping[int, Mapping[int, float]], sign: int
) -> list[float]:
    """Return the baseline's values in the study's unit: one for each round or earlier run."""
    if isinstance(baseline, Single):
        return list(measured[baseline.n].values())
    if isinstance(baseline, History):
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
            raise ValueError(f"a copy runs on one host: {observation}")
        key = (observation.step, observation.round, observation.hosts[0] if copy else "")
        if key in seen:
            on = f" on {key[2]}" if copy else ""
            raise ValueError(f"step {observation.step} has more than one value in round {observation.round}{on}")
        seen.add(key)


def _by_step(observations: Sequence[Observation]) -> dict[int, dict[int, float]]:
    """Return step -> round -> value, both ascending, without copies."""
    by_step: dict[int, dict[int, float]] = {}
    for observation in sorted(observations, key=lambda o: (o.step, o.round)):
        if observation.kind == "step":
            by_step.setdefault(observation.step, {})[observation.round] = observation.value
    return by_step


def _slow(found: Sequence[NodeSpeed]) -> list[str]:
    """Return the sentence that names slow nodes, if any."""
    named = [f"{node.host} ({1 - node.relative:.0%} behind the median node)" for node in found if node.slow]
    return [f"slow {'node' if len(named) == 1 else 'nodes'}: {', '.join(named)}"] if named else []


class _Rules(NamedTuple):
    """The criteria for all steps of a study."""

    target: float
    step_unit: str
    max_half_width: float | None
    steps: int
    rounds: int | None
    baseline: StepResult
    sign: int


def _baseline_step(n: int, values: Sequence[float]) -> StepResult:
    mean, variation = geometric_mean(values), coefficient_of_variation(values)
    return StepResult(n, len(values), mean, variation, 1.0, 1.0, 1.0, None, None, "the baseline", None, None)


def _step(n: int, values: Mapping[int, float], found: Efficiencies, rules: _Rules) -> StepResult:
    ideal = n / rules.baseline.n
    mean = geometric_mean(values.values())
    log_interval = found.interval(rules.steps, rules.rounds)
    # Three values that differ by orders of magnitude have an interval beyond the range of a float.
    interval = Interval(math.exp(log_interval.low), math.exp(min(log_interval.high, 700))) if log_interval else None
    # Where values are lacking, all that there are still give an efficiency, only no verdict.
    efficiency = (mean / rules.baseline.mean) ** rules.sign / ideal if found.lacking else math.exp(typical(found.logs))
    if found.lacking:
        judgement = _incomplete(found.lacking, n, rules.step_unit)
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


def _incomplete(lacking: Sequence[tuple[int, int]], n: int, step_unit: str) -> _Judgement:
    """Judge a step with a missing round, its own or the baseline's: the missing values may have been the slow ones."""
    lost = [f"{_count(step, step_unit)} in round {r}" for step, r in lacking]
    reason = f"{_count(n, step_unit)}: no value for {', '.join(lost)}"
    return _Judgement("inconclusive", reason, "find out why these runs have no value, then measure again")


def _judge(found: Efficiencies, interval: Interval | None, *, name: str, rules: _Rules) -> _Judgement:
    """Judge one step by the interval of its efficiency."""
    logs, n, target, max_half_width = found.logs, len(found.logs), rules.target, rules.max_half_width
    if n < MIN_REPETITIONS:
        reason = f"{name}: {_count(n, 'repetitions')} give no interval: at least {MIN_REPETITIONS} are required"
        return _Judgement("inconclusive", reason, f"measure again with --repeat {USUAL_REPETITIONS}", USUAL_REPETITIONS)
    if interval is None:
        reason = f"{name}: all {n} repetitions give exactly the same efficiency, which measured rates never have"
        return _Judgement(
            "inconclusive", reason, "measure with more digits or longer, and check that every run measures"
        )
    efficiency = math.exp(typical(logs))
    precision = half_width(Bounds(math.log(max(interval.low, 1e-300)), math.log(interval.high)))
    level = f"{confidence_for(rules.steps) * 100:.3g} %"
    known = f"{name}: efficiency {efficiency:.3f} ({level} interval {interval.low:.3f} to {interval.high:.3f})"
    if max_half_width is not None and precision > max_half_width:
        reason = f"{known} is known to {precision * 100:.1f} %; --precision requires {max_half_width * 100:g} %"
        return _undecided(reason, found, math.asinh(max_half_width), math.asinh(max_half_width), rules)
    if interval.low >= target:
        return _Judgement("pass", f"{known} reaches the target {target:.3f}")
    if interval.high < target:
        return _Judgement("fail", f"{known} is below the target {target:.3f}")
    distance = math.log(target / efficiency)
    reason = f"{known} cannot be distinguished from the target {target:.3f}"
    return _undecided(reason, found, max(-distance, 0.0), max(distance, 0.0), rules)


def _undecided(reason: str, found: Efficiencies, down: float, up: float, rules: _Rules) -> _Judgement:
    """Judge a step whose interval is too wide, with the cause: the digits, the earlier runs or the noise.

    Args:
        reason: Result in a sentence.
        found: Efficiencies of the step, which have an interval.
        down: Half width that would settle the step, below its efficiency; 0 if only the other side matters.
        up: The same above it.
        rules: Those of the study.
    """
    before, n, spread = found.before(rules.steps) or Bounds(0.0, 0.0), len(found.logs), stdev(found.logs)
    # A low reference is a high efficiency. If both sides matter, the mean of both half widths is compared.
    sides = [(down, before.high), (up, -before.low)]
    used = [(limit, part) for limit, part in sides if limit > 0] or sides
    limit = max(fmean(limit for limit, _ in used), spread / 100)  # a smaller limit requires too many repetitions
    earlier = fmean(part for _, part in used)
    left = limit - found.margin
    if left <= 0:
        hint = (
            f"the last digit of the values alone is ±{math.sinh(found.margin):.1%}: measure longer or print more digits"
        )
        return _Judgement("inconclusive", reason, hint)
    if left <= earlier:
        hint = (
            f"the earlier runs alone are known to ±{math.sinh(earlier):.1%}: repetitions do not help; "
            "measure with --baseline single, or again after more runs of the baseline"
        )
        return _Judgement("inconclusive", reason, hint)
    confidence = required_confidence(rules.steps, rules.rounds)
    needed = repetitions_needed(spread, math.sqrt(left**2 - earlier**2), confidence=confidence)
    return _more_repetitions(reason, n, max(needed, n + 1))


def _more_repetitions(reason: str, n: int, needed: int) -> _Judgement:
    """Judge a step that is inconclusive for its noise: how many repetitions would settle it?"""
    less_noise = "exclusive nodes, bound ranks or more timed steps lower the noise"
    if needed > MANY_REPETITIONS:
        hint = f"about {needed} repetitions (now {n}) would be needed, too many to be worth it: {less_noise}"
    else:
        hint = f"about {needed} repetitions (now {n}) are probably enough: --repeat {needed}; {less_noise}"
    return _Judgement("inconclusive", reason, hint, needed)


def _conclude(steps: Sequence[StepResult], step_unit: str) -> tuple[Verdict | None, str, str | None]:
    """Return verdict, reason and hint of the study from its steps (the first is the baseline)."""
    scaled = steps[1:]
    if not scaled:
        reason = f"only {_count(steps[0].n, step_unit)} was measured: nothing to compare"
        return None, reason, "measure two steps or more, for example --scale 1,2"
    verdicts: tuple[Verdict, ...] = ("fail", "inconclusive", "pass")
    verdict = next(verdict for verdict in verdicts if any(step.verdict == verdict for step in scaled))
    deciding = [step for step in scaled if step.verdict == verdict]
    if verdict == "inconclusive":  # what repetitions cannot fix comes first
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
    """Format ``1 rank``, ``2 ranks``."""
    return f"{n} {unit.removesuffix('s') if n == 1 else unit}"
