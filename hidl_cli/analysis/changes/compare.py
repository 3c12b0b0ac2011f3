"""Compare two sets of runs metric by metric, by rank tests corrected for multiple metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from hidl_cli.analysis.changes.rank_test import Shift, compare_ranks, describe_effect, holm, least_p
from hidl_cli.analysis.changes.scale import Scale
from hidl_cli.analysis.measures import Measure, RunValues, by_measure, copies_of, in_common_units, swept_parameters
from hidl_cli.analysis.samples import DISTURBED, Sample
from hidl_cli.analysis.statistics import Interval

TOLERANCE = 0.03  # a worsening by less is nobody's business
ALPHA = 0.05
PER_SIDE = 10  # values a side, beyond which more are not asked for

ComparisonOutcome = Literal["worse", "better", "different", "same", "inconclusive"]
Independent = Literal["runs", "repetitions"]
_GRAVE: tuple[Literal["worse", "different", "inconclusive"], ...] = ("worse", "different", "inconclusive")


@dataclass(frozen=True, slots=True)
class Difference:
    """How a metric differs, in fractions: -0.05 is 5 % less in B; ``interval`` has 95 % confidence for this metric.

    Fractions are of A's median; if that is 0, of B's.
    ``effect`` is Cliff's delta; ``p`` is Mann-Whitney's, ``p_holm`` is corrected for all compared metrics.
    ``independent``: what counts as one observation.
    """

    measure: Measure
    unit: str
    better: str | None
    independent: Independent
    count_a: int
    count_b: int
    median_a: float
    median_b: float
    shift: float
    interval: Interval | None
    effect: float
    effect_in_words: str
    p: float
    p_holm: float
    outcome: ComparisonOutcome
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All metrics that A and B share. ``outcome``: the gravest of theirs; same if all are the same or better."""

    tolerance: float
    differences: tuple[Difference, ...]
    outcome: Literal["worse", "different", "inconclusive", "same"]
    only_in_a: tuple[Measure, ...]
    only_in_b: tuple[Measure, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        document = asdict(self)
        for difference in document["differences"]:
            difference["measure"] = difference["measure"]._asdict()
        for key in ("only_in_a", "only_in_b"):
            document[key] = [measure._asdict() for measure in document[key]]
        return document


def compare(a: Iterable[Sample], b: Iterable[Sample], *, tolerance: float = TOLERANCE) -> Comparison:
    """Compare the samples of B with those of A; ``ValueError`` if they share no measure.

    Two single runs are compared by their repetitions, so the result holds for these two runs only. If a side has
    several runs, each counts once (the median of its repetitions): repetitions in one allocation are not independent,
    and counting each would find differences between any two nights. The points of a sweep are compared one by one, and
    so are concurrent copies on hosts that both sides used. Values are converted to one unit. A metric

    - differs if its Holm-corrected p-value is at most 0.05 and its shift exceeds ``tolerance`` (a fraction):
      *worse* or *better* by its direction, *different* if it has none;
    - is the *same* if the 95 % interval of the shift excludes a worsening by more than the tolerance;
    - is *inconclusive* otherwise: too few values, too much noise, or a side that was only measured while another run
      used the same cores.
    """
    before = list(a)
    every = in_common_units([*before, *b])
    disturbed: set[_Place] = set()
    samples_a, samples_b = (_of_one_series(side, disturbed) for side in (every[: len(before)], every[len(before) :]))
    shared_series = {sample.series for sample in samples_a} & {sample.series for sample in samples_b}
    hosts = _copy_hosts(samples_a) & _copy_hosts(samples_b)
    runs_a, runs_b = (
        by_measure(side, across_series=not shared_series, swept=swept_parameters([*samples_a, *samples_b]), hosts=hosts)
        for side in (samples_a, samples_b)
    )
    measures = [measure for measure in runs_a if measure in runs_b]
    if not measures:
        raise ValueError(_describe_units(runs_a, runs_b) or "they have no metric of one workload and size in common")
    sides = [_sides(runs_a[measure], runs_b[measure]) for measure in measures]
    scales = [Scale.of([*left, *right]) for _, left, right in sides]
    shifts = [
        compare_ranks(scale.places(left), scale.places(right))
        for scale, (_, left, right) in zip(scales, sides, strict=True)
    ]
    corrected = holm([shift.p for shift in shifts])
    differences = tuple(
        _difference(
            measure,
            runs_b[measure][-1].sample,
            side,
            scale,
            shift,
            p_holm=p_holm,
            metrics=len(measures),
            tolerance=tolerance,
        )
        for measure, side, scale, shift, p_holm in zip(measures, sides, scales, shifts, corrected, strict=True)
    )
    differences = tuple(
        _without_outcome(difference, [_is_disturbed(side[difference.measure], disturbed) for side in (runs_a, runs_b)])
        for difference in differences
    )
    found = {difference.outcome for difference in differences}
    return Comparison(
        tolerance,
        differences,
        next((outcome for outcome in _GRAVE if outcome in found), "same"),
        tuple(measure for measure in runs_a if measure not in runs_b),
        tuple(measure for measure in runs_b if measure not in runs_a),
    )


def _describe_units(a: Iterable[Measure], b: Iterable[Measure]) -> str | None:
    """Name the first measure that differs between A and B in nothing but its unit; None without such a measure."""
    units = {measure._replace(unit=""): measure.unit for measure in a}
    for measure in b:
        unit = units.get(measure._replace(unit=""))
        if unit is not None:
            return f"{measure.metric} is in {unit} in A and in {measure.unit} in B"
    return None


_Place = tuple[str, str, str]


def _place(sample: Sample) -> _Place:
    return sample.run, sample.series.removeprefix(DISTURBED), sample.metric


def _of_one_series(samples: Sequence[Sample], disturbed: set[_Place]) -> list[Sample]:
    """Return the samples without those of disturbed steps, unless a side has no others of that series and metric.

    The places of those that stay are added to ``disturbed``, and they get the series of steps that ran alone.
    """
    alone = {_place(sample)[1:] for sample in samples if not sample.is_disturbed}
    left = [sample for sample in samples if not sample.is_disturbed or _place(sample)[1:] not in alone]
    disturbed.update(_place(sample) for sample in left if sample.is_disturbed)
    return [replace(sample, series=_place(sample)[1]) if sample.is_disturbed else sample for sample in left]


def _is_disturbed(runs: Sequence[RunValues], disturbed: set[_Place]) -> bool:
    return any(_place(run.sample) in disturbed for run in runs)


def _without_outcome(difference: Difference, disturbed: Sequence[bool]) -> Difference:
    """Return an inconclusive difference if a side was ``disturbed``; what the other run took may have caused it."""
    sides = [side for side, its in zip("AB", disturbed, strict=True) if its]
    if not sides:
        return difference
    what = f"{' and '.join(sides)} {'were' if len(sides) > 1 else 'was'}"
    reason = f"{what} measured while another run used the same cores"
    return replace(difference, outcome="inconclusive", reason=reason)


def _copy_hosts(samples: Sequence[Sample]) -> set[str]:
    return {host for sample in copies_of(samples) for host in sample.hosts[:1]}


_Side = tuple[Independent, list[float], list[float]]


def _sides(a: Sequence[RunValues], b: Sequence[RunValues]) -> _Side:
    if len(a) == len(b) == 1:
        return "repetitions", list(a[0].values), list(b[0].values)
    return "runs", [run.value for run in a], [run.value for run in b]


def _difference(
    measure: Measure,
    sample: Sample,
    side: _Side,
    scale: Scale,
    ranks: Shift,
    *,
    p_holm: float,
    metrics: int,
    tolerance: float,
) -> Difference:
    independent, a, b = side
    levels = median(a), median(b)
    interval = ranks.interval
    relative = Interval(scale.change(interval.low, *levels), scale.change(interval.high, *levels)) if interval else None
    shift = scale.change(ranks.shift, *levels)
    outcome, reason = _outcome(sample.better, shift, relative, p_holm, tolerance)
    if outcome == "inconclusive" and metrics * least_p(len(a), len(b)) > ALPHA:
        reason = _too_few(len(a), len(b), independent, metrics)
    return Difference(
        measure=measure,
        unit=sample.unit,
        better=sample.better,
        independent=independent,
        count_a=len(a),
        count_b=len(b),
        median_a=levels[0],
        median_b=levels[1],
        shift=shift,
        interval=relative,
        effect=ranks.delta,
        effect_in_words=describe_effect(ranks.delta),
        p=ranks.p,
        p_holm=p_holm,
        outcome=outcome,
        reason=reason,
    )


def _outcome(
    better: str | None, shift: float, interval: Interval | None, p_holm: float, tolerance: float
) -> tuple[ComparisonOutcome, str]:
    if p_holm <= ALPHA and abs(shift) > tolerance:
        found = f"differs by {shift:+.1%} (p = {p_holm:.2g})"
        if better is None:
            return "different", found
        return ("better" if (shift > 0) == (better == "higher") else "worse"), found
    if interval is None:
        return "inconclusive", "too few values for an interval"
    down, up = interval.low < -tolerance, interval.high > tolerance
    excluded = {"higher": not down, "lower": not up}.get(better or "", not down and not up)
    if excluded:
        what = "a change" if better is None else "a worsening"
        return "same", f"{what} by more than {tolerance:.3g} is excluded"
    return "inconclusive", f"too noisy: anything from {interval.low:+.1%} to {interval.high:+.1%} is possible"


def _too_few(m: int, n: int, independent: Independent, metrics: int) -> str:
    """Say why so few values show nothing, and how many would."""
    enough = next((k for k in range(2, PER_SIDE + 1) if metrics * least_p(k, k) <= ALPHA), PER_SIDE + 1)
    among = f" among {metrics} metrics" if metrics > 1 else ""
    return f"{m} against {n} {independent} cannot show a difference{among}, {enough} on each side can"
