"""The scale on which values are compared: their ratios, or their differences where one of them is zero or less."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import cache, lru_cache
from statistics import NormalDist, fmean, median
from typing import TYPE_CHECKING, Any, Literal

from hidl_cli.analysis.samples import (
    DISTURBED,
    Measure,
    RunValues,
    Sample,
    by_measure,
    copies_of,
    in_common_units,
    instant,
    swept_parameters,
)
from hidl_cli.analysis.statistics import CONFIDENCE, Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Less than this part of another value is as good as 0; changes by less are those of floating-point arithmetic.
NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True)
class Scale:
    """Places of values on which shifts are measured; ``ratios``: they are logarithms, else the values themselves."""

    ratios: bool

    @classmethod
    def of(cls, values: Sequence[float]) -> Scale:
        """Return the scale of all these values, at least one, which are compared with each other."""
        return cls(ratios=min(values) > NEGLIGIBLE * max(values))

    def places(self, values: Iterable[float]) -> list[float]:
        """Return where these values lie."""
        return [math.log(value) for value in values] if self.ratios else list(values)

    def value(self, place: float) -> float:
        """Return the value that lies there."""
        return math.exp(place) if self.ratios else place

    def mean(self, values: Iterable[float]) -> float:
        """Return the value in the middle of these values' places: their geometric mean, or the arithmetic one."""
        return self.value(fmean(self.places(values)))

    def change(self, shift: float, before: float, after: float) -> float:
        """Return a shift of places as a fraction of the value ``before``; of the one ``after``, if that was 0.

        From 72 to 0 is -1.0, from 0 to 72 is +1.0. Between two values that are negligible beside the shift it is 1.0 or
        -1.0.
        """
        if self.ratios:
            return math.expm1(shift)
        base = abs(before) if abs(before) > NEGLIGIBLE * abs(after) else abs(after)
        if base <= NEGLIGIBLE * abs(shift):
            base = abs(shift)
        return shift / (base or 1.0)

    def rounding(self, values: Sequence[float]) -> float:
        """Return the greatest error of these values' places by the digits to which they were rounded.

        Programs print few digits (OMB: two decimals), and what is rounded to the same number is not without noise.
        """
        digit = 10.0 ** min(0, *(_exponent(value) for value in values))
        typical = median(map(abs, values)) or 1.0
        half = max(digit / 2, NEGLIGIBLE * typical)
        return half / typical if self.ratios else half


def _exponent(value: float) -> int:
    """Return the power of ten of a value's last digit: -2 of 1.25."""
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    assert isinstance(exponent, int), value
    return exponent


# Compare two samples by ranks: Mann-Whitney test, Hodges-Lehmann shift, Cliff's delta, Holm correction.


#: Up to so many values in all, the distribution of the rank sum is counted out; beyond, it is all but normal.
EXACT_UP_TO = 60


@dataclass(frozen=True, slots=True)
class Shift:
    """How ``b`` differs from ``a``.

    ``p``: two-sided, of the hypothesis that both have one distribution. ``delta``: how much more often a value of ``b``
    exceeds one of ``a`` than the reverse, from -1 to 1 (Cliff 1993, Psychological Bulletin 114, 494-509). ``shift``:
    the median of all differences ``b - a``, with its 95 % ``interval``; None for too few values.
    """

    p: float
    delta: float
    shift: float
    interval: Interval | None


def compare_ranks(a: Sequence[float], b: Sequence[float], *, confidence: float = CONFIDENCE) -> Shift:
    """Compare two samples (Mann & Whitney 1947; Hodges & Lehmann 1963); ``ValueError`` if one is empty."""
    if not a or not b:
        raise ValueError("each side requires at least one value")
    differences = sorted(y - x for x in a for y in b)
    pairs = len(differences)
    above = sum(d > 0 for d in differences)
    below = sum(d < 0 for d in differences)
    return Shift(
        _p_value(a, b), (above - below) / pairs, median(differences), _interval(differences, len(a), confidence)
    )


def least_p(m: int, n: int) -> float:
    """Return the smallest possible two-sided p-value of ``m`` against ``n`` values: ``2 / (m+n choose m)``."""
    return min(1.0, 2 / math.comb(m + n, m))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values, each adjusted for multiple tests (Holm 1979, Scand. J. Statist. 6, 65-70)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for position, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def describe_effect(delta: float) -> str:
    """Return the usual name of the size of a Cliff's delta (Romano et al. 2006)."""
    size = abs(delta)
    return next(
        (word for limit, word in ((0.147, "negligible"), (0.33, "small"), (0.474, "medium")) if size < limit), "large"
    )


def _p_value(a: Sequence[float], b: Sequence[float]) -> float:
    doubled = _doubled_ranks([*a, *b])
    observed = sum(doubled[: len(a)])
    if len(doubled) <= EXACT_UP_TO:
        counts = _rank_sums(tuple(doubled), len(a))
        total = counts.sum()
        return min(1.0, 2 * float(min(counts[: observed + 1].sum(), counts[observed:].sum()) / total))
    m, n, size = len(a), len(b), len(doubled)
    mean = m * (size + 1)
    variance = m * n / (size * (size - 1)) * sum((rank - (size + 1)) ** 2 for rank in doubled)
    if variance == 0:
        return 1.0
    z = max(0.0, abs(observed - mean) - 1) / math.sqrt(variance)
    return 2 * (1 - NormalDist().cdf(z))


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value: an integer, since ties share the average of their ranks."""
    ordered = sorted(values)
    first = {value: i for i, value in reversed(list(enumerate(ordered, 1)))}
    last = {value: i for i, value in enumerate(ordered, 1)}
    return [first[value] + last[value] for value in values]


@lru_cache(maxsize=256)
def _rank_sums(doubled: tuple[int, ...], m: int) -> NDArray[Any]:
    """Return how many choices of ``m`` of these ranks have each sum, with ties (Streitberg & Röhmel 1986, Computational
    Statistics Quarterly 3, 23-41).
    """
    import numpy as np

    counts = np.zeros((m + 1, sum(doubled) + 1))
    counts[0, 0] = 1
    for rank in doubled:
        counts[1:, rank:] = counts[1:, rank:] + counts[:-1, : counts.shape[1] - rank]
    sums: NDArray[Any] = counts[m]
    return sums


def _interval(differences: Sequence[float], m: int, confidence: float) -> Interval | None:
    """Return the shifts that the test would not reject: all but the ``k`` least and greatest differences."""
    n = len(differences) // m
    k = _left_out(m, n, confidence)
    return Interval(differences[k - 1], differences[-k]) if k else None


@lru_cache(maxsize=256)
def _left_out(m: int, n: int, confidence: float) -> int:
    """Return the largest k with P(U < k) <= (1 - confidence) / 2; 0 if there is none."""
    tail = (1 - confidence) / 2
    if m + n > EXACT_UP_TO:
        z = NormalDist().inv_cdf(1 - tail)
        return max(0, math.floor(m * n / 2 - z * math.sqrt(m * n * (m + n + 1) / 12)))
    counts = _rank_sums(tuple(2 * rank for rank in range(1, m + n + 1)), m)[m * (m + 1) :: 2]
    return int((counts.cumsum() / counts.sum() <= tail).sum())


# Compare two sets of runs metric by metric, by rank tests corrected for multiple metrics.


TOLERANCE = 0.03  # smallest regression worth reporting, as a fraction
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


# Change points: the runs at which a metric's level changed, as opposed to noise, outliers and drifts.


LEAST_RUNS = 20  # fewer do not tell noise from change
SHORTEST = 3  # runs on one level: one bad night, or two, are no step
PENALTY = 12.0  # what a further level must explain, in variances of one run
STEP_OR_DRIFT = 10.0  # what a step must explain beyond a straight line, in the same
FEW = 5  # the noise of n runs is known so badly that both are raised by 5/n
CLIPPED = 2.5  # a run counts as no further than so many deviations from its neighbours
NEIGHBOURS = 7  # runs whose median is what a run is held against
_PERIODS = 3  # in which a set of nodes was used before its level is known apart from changes
_REWEIGHTED = 10
_MOST_CORRELATED = 0.9
_LARGE = 4.0  # deviations of one run, by which levels of correlated noise rarely differ
_CHANCE = 1.6  # correlations below this part of 1 / sqrt(runs) are chance
AROUND = 5  # runs before and after a step whose circumstances are compared


@dataclass(frozen=True, slots=True)
class Circumstance:
    """What else changed at a change point: ``what`` is ``lock``, ``mpi``, ``hosts`` or the name of a tuning variable.

    ``before`` and ``after`` are the values of most runs next to the change, None if a variable was not set; for
    ``hosts``, those used only before, or only after.
    """

    what: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level: ``run`` is the first one of the new level, planned at ``created``.

    ``change`` is a fraction of the old level (if that is 0, of the new one): -0.05 is 5 % less; ``interval``: its 95 %
    confidence interval, given the position. ``worse`` is None if the metric has no direction. ``index`` counts runs
    from 0.
    """

    index: int
    run: str
    created: str
    before: float
    after: float
    change: float
    interval: Interval
    worse: bool | None
    circumstances: tuple[Circumstance, ...]


@dataclass(frozen=True, slots=True)
class History:
    """A measure over time, ``values`` by run; ``noise``: the relative deviation of one run from its level.

    ``reason``: why no changes were searched for, or None.
    """

    measure: Measure
    unit: str
    better: str | None
    site: str
    runs: tuple[str, ...]
    created: tuple[str, ...]
    values: tuple[float, ...]
    noise: float | None
    steps: tuple[Change, ...]
    reason: str | None


def histories(samples: Iterable[Sample], *, metric: str | None = None) -> list[History]:
    """Return the history of each metric of each series (of one metric if named), the oldest run first."""
    measures = by_measure(sample for sample in samples if metric in (None, sample.metric))
    return [_history(measure, runs) for measure, runs in measures.items()]


def find_changes(
    values: Sequence[float], days: Sequence[float] | None = None, hosts: Sequence[tuple[str, ...]] | None = None
) -> list[int]:
    """Return the indices at which a new level begins in ``values``.

    Their places (logarithms; where a value is not positive, the values themselves) are clipped at 2.5 deviations from
    the median of seven neighbours, to limit the weight of outliers. The deviation is at least the error of rounding.
    PELT (Killick, Fearnhead & Eckley 2012, J. Am. Statist. Assoc. 107, 1590-1598; ruptures' ``KernelCPD`` with a linear
    kernel) divides them into levels. Each boundary must then explain more than a straight line through both its levels;
    of those that do not, the weakest is dropped until all do, so a slow drift is not a change. Both limits are in units
    of the long-run variance, because the noise of neighbouring nights is often correlated. Returns nothing for fewer
    than 20 values, or if one is not finite.

    Args:
        values: One for each run, the oldest first.
        days: Their times in days; by default, one run a day.
        hosts: The nodes of each run. The level of a set of nodes that was used again and again is subtracted.
    """
    import numpy as np

    n = len(values)
    if n < LEAST_RUNS or not all(map(math.isfinite, values)):
        return []
    times = np.arange(n, dtype=float) if days is None else np.asarray(days, dtype=float)
    scale = Scale.of(values)
    places, deviation = _without_hosts(scale, values, hosts, [])
    found = _boundaries(places, deviation, times)
    columns = _recurring(hosts) if hosts is not None else []
    if not columns or not found:
        return found
    design = np.array([[each == column for column in columns] for each in hosts or ()], dtype=float)
    offsets = np.asarray(scale.places(values)) - places
    unit = deviation * math.sqrt(_long_run(places))
    return _beyond_hosts((_clipped(places, deviation) + offsets) / unit, design, found)


def _beyond_hosts(y: NDArray[Any], design: NDArray[Any], changes: Sequence[int]) -> list[int]:
    """Drop the changes that the levels of the sets of nodes explain as well, the weakest first."""
    import numpy as np

    def squares(kept: Sequence[int]) -> float:
        begins = np.arange(len(y))[:, None] >= np.array([0, *kept])
        return _squares(np.column_stack([design, begins]), y)

    found = list(changes)
    while found:
        explained = [squares([*found[:i], *found[i + 1 :]]) - squares(found) for i in range(len(found))]
        weakest = int(np.argmin(explained))
        if explained[weakest] >= PENALTY * (1 + FEW / len(y)):
            break
        del found[weakest]
    return found


def _boundaries(places: NDArray[Any], deviation: float, times: NDArray[Any]) -> list[int]:
    import numpy as np
    from ruptures import KernelCPD

    n = len(places)
    clipped = _clipped(places, deviation) / (deviation * math.sqrt(_long_run(places)))
    few = 1 + FEW / n
    detector = KernelCPD(kernel="linear", min_size=SHORTEST).fit(clipped[:, None])
    found = [int(index) for index in detector.predict(pen=PENALTY * few)[:-1]]
    while found:
        edges = [0, *found, n]
        explained = [_beyond_a_line(clipped, times, *edges[i : i + 3]) for i in range(len(found))]
        weakest = int(np.argmin(explained))
        if explained[weakest] >= STEP_OR_DRIFT * few:
            break
        del found[weakest]
    return found


def _without_hosts(
    scale: Scale, values: Sequence[float], hosts: Sequence[tuple[str, ...]] | None, changes: Sequence[int]
) -> tuple[NDArray[Any], float]:
    """Return the places without the levels of their sets of nodes, and the deviation of one run.

    The levels are fitted to the differences of neighbouring runs, which changes hardly affect, or with the levels
    between known ``changes`` to all runs, which is more precise. Only sets that were
    used in several separate periods count: a step at which the nodes changed for good remains a step. The deviation is
    at least the error of rounding.
    """
    import numpy as np

    places = np.asarray(scale.places(values), dtype=float)
    columns = _recurring(hosts) if hosts is not None else []
    free = 1.0
    if columns:
        design = np.array([[each == column for column in columns] for each in hosts or ()], dtype=float)
        if changes:
            begins = np.arange(len(places))[:, None] >= np.array([0, *changes])
            levels = _robust_fit(np.column_stack([design, begins]), places)[: len(columns)]
        else:
            levels = _robust_fit(np.diff(design, axis=0), np.diff(places))
        offsets = design @ levels
        places = places - offsets + np.median(offsets)
        free = math.sqrt(len(places) / max(1, len(places) - len(columns)))
    return places, max(free * _deviation(places), scale.rounding(values))


def _robust_fit(design: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Fit by iteratively reweighted least squares with Huber's weights."""
    import numpy as np

    weights = np.ones(len(y))
    for _ in range(_REWEIGHTED):
        root = np.sqrt(weights)
        fitted: NDArray[Any] = np.linalg.lstsq(root[:, None] * design, root * y, rcond=None)[0]
        rest = np.abs(y - design @ fitted)
        limit = CLIPPED * 1.4826 * np.median(rest)
        if limit <= 0:
            break
        weights = limit / np.maximum(rest, limit)
    return fitted


def _recurring(hosts: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the sets of nodes that were used in at least three separate periods, if there are several."""
    periods = Counter(each for index, each in enumerate(hosts) if not index or hosts[index - 1] != each)
    found = [each for each, count in periods.items() if each and count >= _PERIODS]
    return found if len(periods) > 1 else []


def _long_run(places: NDArray[Any], *, cautious: bool = False) -> float:
    """Return the variance of a mean of many runs, in that which independent runs of this deviation would have.

    It is estimated for noise whose correlation falls geometrically, from the deviations of differences of runs that
    are one, two and four apart. Differences across the strongest step do not count if it is larger than correlated
    noise makes them: 40 runs with 1 % of independent noise and a step of 10 % can otherwise look so correlated that the
    step is missed (in 15 of 200 simulated series). ``cautious`` lets them count.
    """
    import numpy as np

    if np.median(np.abs(np.diff(places))) == 0:
        return 1.0
    step: int | None = _strongest_step(places)
    if cautious or abs(np.median(places[step:]) - np.median(places[:step])) < _LARGE * _deviation(places):
        step = None
    one, two, four = (_deviation(places, apart, step) ** 2 for apart in (1, 2, 4))
    if one == 0:
        return 1.0
    # Of a correlation r: two = one (1 + r), four = one (1 + r + r^2 + r^3).
    ends = two / one - 1, (four / one - 1) / 2
    correlation = min(_MOST_CORRELATED, max(ends))
    if min(ends) < _CHANCE / math.sqrt(len(places)):
        return 1.0
    return (1 + correlation) / (1 - correlation) ** 2


def _strongest_step(places: NDArray[Any]) -> int:
    """Return the index at which two levels, each of at least ``SHORTEST`` runs, explain the most."""
    import numpy as np

    n = len(places)
    first = np.arange(SHORTEST, n - SHORTEST + 1)
    sums = np.cumsum(places - places.mean())[first - 1]
    return int(first[np.argmax(sums**2 / (first * (n - first)))])


def _deviation(places: NDArray[Any], apart: int = 1, step: int | None = None) -> float:
    """Return the noise of one run from differences of runs ``apart``, which changes and drifts hardly affect.

    Differences across the index ``step`` are left out.

    The deviation of the differences, clipped at 2.5 times their median absolute deviation: nearly as efficient as the
    standard deviation, and robust to outliers.
    """
    import numpy as np

    differences = places[apart:] - places[:-apart]
    if step is not None:
        index = np.arange(len(differences))
        differences = differences[(index >= step) | (index + apart < step)]
    limit = CLIPPED * 1.4826 * np.median(np.abs(differences))
    return float(np.sqrt(np.mean(np.clip(differences, -limit, limit) ** 2) / _variance_left(CLIPPED) / 2))


@cache
def _variance_left(limit: float) -> float:
    """Return the mean square of a standard normal variable clipped at ``±limit``."""
    normal = NormalDist()
    inside = 2 * normal.cdf(limit) - 1
    return inside - 2 * limit * normal.pdf(limit) + limit**2 * (1 - inside)


def _clipped(places: NDArray[Any], deviation: float) -> NDArray[Any]:
    import numpy as np

    half = NEIGHBOURS // 2
    padded = np.pad(places, half, constant_values=np.nan)
    medians = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS), axis=1)
    clipped: NDArray[Any] = medians + np.clip(places - medians, -CLIPPED * deviation, CLIPPED * deviation)
    return clipped


def _beyond_a_line(y: NDArray[Any], times: NDArray[Any], begin: int, step: int, end: int) -> float:
    """Return how much a change lowers the sum of squares below that of a straight line through both levels."""
    import numpy as np

    x, after = times[begin:end] - times[step], np.arange(begin, end) >= step
    line = np.stack([np.ones(end - begin), x], axis=1)
    return _squares(line, y[begin:end]) - _squares(np.column_stack([line, after]), y[begin:end])


def _squares(design: NDArray[Any], y: NDArray[Any]) -> float:
    import numpy as np

    residuals = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return float(residuals @ residuals)


def _history(measure: Measure, runs: Sequence[RunValues]) -> History:
    import numpy as np

    sample = runs[-1].sample
    values = [run.value for run in runs]
    scale = Scale.of(values)
    begin = instant(runs[0].sample.created)
    days = [(instant(run.sample.created) - begin).total_seconds() / 86400 for run in runs]
    hosts = [run.sample.hosts for run in runs]
    places, noise = np.asarray(scale.places(values)), None
    indices = find_changes(values, days, hosts)
    if len(runs) > 2:
        places, noise = _without_hosts(scale, values, hosts, indices)
    edges = [0, *indices, len(values)]
    levels = _clipped(places, noise) if noise else places
    of_mean = (noise or 0.0) * math.sqrt(_long_run(places, cautious=True)) if indices else 0.0
    steps = tuple(
        _step(runs, scale, levels, of_mean, edges[i : i + 3], better=sample.better) for i in range(len(indices))
    )
    reason = f"{len(runs)} run(s): detecting changes requires {LEAST_RUNS}" if len(runs) < LEAST_RUNS else None
    return History(
        measure=measure,
        unit=sample.unit,
        better=sample.better,
        site=sample.site,
        runs=tuple(run.sample.run for run in runs),
        created=tuple(run.sample.created for run in runs),
        values=tuple(values),
        noise=None if noise is None else scale.change(noise, median(values), max(map(abs, values))),
        steps=steps,
        reason=reason,
    )


def _step(
    runs: Sequence[RunValues],
    scale: Scale,
    places: NDArray[Any],
    noise: float,
    edges: Sequence[int],
    *,
    better: str | None,
) -> Change:
    begin, index, end = edges
    old, new = float(places[begin:index].mean()), float(places[index:end].mean())
    half = NormalDist().inv_cdf(0.975) * noise * math.sqrt(1 / (index - begin) + 1 / (end - index))
    before, after = scale.value(old), scale.value(new)
    low, change, high = (scale.change(new - old + part, before, after) for part in (-half, 0, half))
    first = runs[index].sample
    return Change(
        index=index,
        run=first.run,
        created=first.created,
        before=before,
        after=after,
        change=change,
        interval=Interval(low, high),
        worse=None if better is None else (change < 0) == (better == "higher"),
        circumstances=_circumstances(
            [run.sample for run in runs[max(begin, index - AROUND) : index]],
            [run.sample for run in runs[index : min(end, index + AROUND)]],
        ),
    )


def _circumstances(before: Sequence[Sample], after: Sequence[Sample]) -> tuple[Circumstance, ...]:
    """Yield what differs between most runs after the change and most runs before it."""
    found = [
        Circumstance(what, old, new)
        for what in ("lock", "mpi", "stack", "launcher")
        if (old := _usual([getattr(s, what) for s in before])) != (new := _usual([getattr(s, what) for s in after]))
    ]
    variables = sorted({name for sample in (*before, *after) for name in sample.tuning})
    for name in variables:
        old, new = _tuned(before, name), _tuned(after, name)
        if old != new:
            found.append(Circumstance(name, old, new))
    hosts_before = {host for sample in before for host in sample.hosts}
    hosts_after = {host for sample in after for host in sample.hosts}
    if hosts_before != hosts_after:
        gone, new_ones = sorted(hosts_before - hosts_after), sorted(hosts_after - hosts_before)
        found.append(Circumstance("hosts", ",".join(gone) or None, ",".join(new_ones) or None))
    return tuple(found)


def _tuned(samples: Sequence[Sample], name: str) -> str | None:
    return _usual([sample.tuning.get(name) for sample in samples])


def _usual(values: Sequence[str | None]) -> str | None:
    """Return the most frequent value, the first of equally frequent ones."""
    return max(dict.fromkeys(values), key=values.count)
