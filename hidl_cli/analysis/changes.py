"""Compare metrics between two sets of runs, and detect changes of a metric over time."""

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


#: Values below this fraction of another value count as 0, because smaller changes are floating-point errors.
NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True)
class ValueScale:
    """The scale on which values are compared: logarithmic if ``ratios`` is true, and linear otherwise."""

    ratios: bool

    @classmethod
    def of(cls, values: Sequence[float]) -> ValueScale:
        """Return the scale for comparing ``values``: linear if any of them is zero or negative."""
        return cls(ratios=min(values) > NEGLIGIBLE * max(values))

    def positions(self, values: Iterable[float]) -> list[float]:
        """Convert values to positions on the scale."""
        return [math.log(value) for value in values] if self.ratios else list(values)

    def value(self, position: float) -> float:
        """Convert a position on the scale to a value."""
        return math.exp(position) if self.ratios else position

    def mean(self, values: Iterable[float]) -> float:
        """Return the geometric mean on a logarithmic scale, and the arithmetic mean on a linear one."""
        return self.value(fmean(self.positions(values)))

    def change(self, shift: float, before: float, after: float) -> float:
        """Convert a shift of positions to a fraction of ``before``, or of ``after`` if ``before`` is 0.

        A change from 72 to 0 is -1.0, and a change from 0 to 72 is +1.0. If both values are negligible compared with
        the shift, the result is 1.0 or -1.0.
        """
        if self.ratios:
            return math.expm1(shift)
        base = abs(before) if abs(before) > NEGLIGIBLE * abs(after) else abs(after)
        if base <= NEGLIGIBLE * abs(shift):
            base = abs(shift)
        return shift / (base or 1.0)

    def rounding(self, values: Sequence[float]) -> float:
        """Return the largest rounding error of the positions, given the number of digits in the values.

        Programs print only a few digits (OMB: two decimals), so equal values are not necessarily free of noise.
        """
        digit = 10.0 ** min(0, *(_exponent(value) for value in values))
        typical = median(map(abs, values)) or 1.0
        half = max(digit / 2, NEGLIGIBLE * typical)
        return half / typical if self.ratios else half


def _exponent(value: float) -> int:
    """Return the power of ten of a value's last digit: -2 for 1.25."""
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    assert isinstance(exponent, int), value
    return exponent


# Rank tests for two samples: Mann-Whitney test, Hodges-Lehmann shift, Cliff's delta, Holm correction.


#: Largest total number of values for which the exact rank-sum distribution is used. Above it, the distribution is
#: nearly normal.
EXACT_UP_TO = 60


@dataclass(frozen=True, slots=True)
class Shift:
    """The difference between two samples ``a`` and ``b``.

    Attributes:
        p: Two-sided p-value of the hypothesis that both samples have the same distribution.
        delta: Probability that a value of ``b`` exceeds one of ``a``, minus the reverse probability: from -1 to 1
            (Cliff 1993, Psychological Bulletin 114, 494-509).
        shift: Median of all differences ``b - a``.
        interval: Confidence interval of ``shift``, or None if there are too few values.
    """

    p: float
    delta: float
    shift: float
    interval: Interval | None


def compare_ranks(a: Sequence[float], b: Sequence[float], *, confidence: float = CONFIDENCE) -> Shift:
    """Compare two samples (Mann & Whitney 1947; Hodges & Lehmann 1963).

    Raises:
        ValueError: If either sample is empty.
    """
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
    """Return the smallest possible two-sided p-value for samples of ``m`` and ``n`` values: ``2 / (m+n choose m)``."""
    return min(1.0, 2 / math.comb(m + n, m))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple tests (Holm 1979, Scand. J. Statist. 6, 65-70)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for position, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def describe_effect(delta: float) -> str:
    """Return the conventional label for the size of a Cliff's delta (Romano et al. 2006)."""
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
    """Return twice the rank of each value, which is an integer because ties share their average rank."""
    ordered = sorted(values)
    first = {value: i for i, value in reversed(list(enumerate(ordered, 1)))}
    last = {value: i for i, value in enumerate(ordered, 1)}
    return [first[value] + last[value] for value in values]


@lru_cache(maxsize=256)
def _rank_sums(doubled: tuple[int, ...], m: int) -> NDArray[Any]:
    """Count the subsets of ``m`` ranks by their sum, with ties (Streitberg & Röhmel 1986, Computational Statistics
    Quarterly 3, 23-41).
    """
    import numpy as np

    counts = np.zeros((m + 1, sum(doubled) + 1))
    counts[0, 0] = 1
    for rank in doubled:
        counts[1:, rank:] = counts[1:, rank:] + counts[:-1, : counts.shape[1] - rank]
    sums: NDArray[Any] = counts[m]
    return sums


def _interval(differences: Sequence[float], m: int, confidence: float) -> Interval | None:
    """Return the range of shifts that the test would not reject, or None if there are too few values.

    The range extends from the k-th smallest to the k-th largest of the sorted pairwise ``differences``.
    """
    n = len(differences) // m
    k = _excluded(m, n, confidence)
    return Interval(differences[k - 1], differences[-k]) if k else None


@lru_cache(maxsize=256)
def _excluded(m: int, n: int, confidence: float) -> int:
    """Return the largest k with P(U < k) <= (1 - confidence) / 2, or 0 if there is no such k."""
    tail = (1 - confidence) / 2
    if m + n > EXACT_UP_TO:
        z = NormalDist().inv_cdf(1 - tail)
        return max(0, math.floor(m * n / 2 - z * math.sqrt(m * n * (m + n + 1) / 12)))
    counts = _rank_sums(tuple(2 * rank for rank in range(1, m + n + 1)), m)[m * (m + 1) :: 2]
    return int((counts.cumsum() / counts.sum() <= tail).sum())


# Comparison of two sets of runs, metric by metric, with rank tests that are corrected for multiple metrics.


TOLERANCE = 0.03  # smallest regression worth reporting, as a fraction
ALPHA = 0.05
PER_SIDE = 10  # largest recommended number of values per side

ComparisonOutcome = Literal["worse", "better", "different", "same", "inconclusive"]
Independent = Literal["runs", "repetitions"]
_BY_SEVERITY: tuple[Literal["worse", "different", "inconclusive"], ...] = ("worse", "different", "inconclusive")


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """The difference of one metric between two sides, A and B.

    Attributes:
        independent: The unit that counts as one observation.
        shift: Change from A to B as a fraction of A's median (or B's, if A's is 0): -0.05 means 5 % less in B.
        interval: 95 % confidence interval of ``shift``, for this metric alone.
        effect: Cliff's delta.
        p: p-value of the Mann-Whitney test.
        p_holm: ``p`` corrected for the number of metrics compared.
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
    """A comparison of all metrics that A and B share.

    ``outcome`` is the most severe outcome of any metric, or ``same`` if every metric is the same or better.
    """

    tolerance: float
    differences: tuple[MetricDifference, ...]
    outcome: Literal["worse", "different", "inconclusive", "same"]
    only_in_a: tuple[Measure, ...]
    only_in_b: tuple[Measure, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serializable dictionary."""
        document = asdict(self)
        for difference in document["differences"]:
            difference["measure"] = difference["measure"]._asdict()
        for key in ("only_in_a", "only_in_b"):
            document[key] = [measure._asdict() for measure in document[key]]
        return document


def compare(a: Iterable[Sample], b: Iterable[Sample], *, tolerance: float = TOLERANCE) -> Comparison:
    """Compare the samples of B with those of A.

    Two single runs are compared by their repetitions, so the result holds for these two runs only. If a side has
    several runs, each run counts once, with the median of its repetitions. Repetitions in one allocation are not
    independent, so counting each of them would find differences between any two nights. The points of a sweep are
    compared one by one, and so are concurrent copies on hosts that both sides used. Values are converted to a common
    unit. The outcome of a metric is

    - *worse*, *better* or, if the metric has no direction, *different* if its Holm-corrected p-value is at most 0.05
      and its shift exceeds ``tolerance`` (a fraction);
    - *same* if the 95 % interval of the shift excludes a regression by more than the tolerance;
    - *inconclusive* otherwise: too few values, too much noise, or a side that was only measured while another run
      used the same cores.

    Raises:
        ValueError: If A and B share no measure.
    """
    before = list(a)
    every = in_common_units([*before, *b])
    disturbed: set[_SeriesKey] = set()
    samples_a, samples_b = (_of_one_series(side, disturbed) for side in (every[: len(before)], every[len(before) :]))
    shared_series = {sample.series for sample in samples_a} & {sample.series for sample in samples_b}
    hosts = _copy_hosts(samples_a) & _copy_hosts(samples_b)
    runs_a, runs_b = (
        by_measure(side, across_series=not shared_series, swept=swept_parameters([*samples_a, *samples_b]), hosts=hosts)
        for side in (samples_a, samples_b)
    )
    measures = [measure for measure in runs_a if measure in runs_b]
    if not measures:
        raise ValueError(
            _describe_units(runs_a, runs_b) or "A and B have no metric of the same workload and size in common"
        )
    sides = [_sides(runs_a[measure], runs_b[measure]) for measure in measures]
    scales = [ValueScale.of([*left, *right]) for _, left, right in sides]
    shifts = [
        compare_ranks(scale.positions(left), scale.positions(right))
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
        next((outcome for outcome in _BY_SEVERITY if outcome in found), "same"),
        tuple(measure for measure in runs_a if measure not in runs_b),
        tuple(measure for measure in runs_b if measure not in runs_a),
    )


def _describe_units(a: Iterable[Measure], b: Iterable[Measure]) -> str | None:
    """Describe the first measure that differs between A and B only in its unit, or return None if there is none."""
    units = {measure._replace(unit=""): measure.unit for measure in a}
    for measure in b:
        unit = units.get(measure._replace(unit=""))
        if unit is not None:
            return f"{measure.metric} is in {unit} in A and in {measure.unit} in B"
    return None


_SeriesKey = tuple[str, str, str]


def _series_key(sample: Sample) -> _SeriesKey:
    return sample.run, sample.series.removeprefix(DISTURBED), sample.metric


def _of_one_series(samples: Sequence[Sample], disturbed: set[_SeriesKey]) -> list[Sample]:
    """Drop samples that were disturbed by another run, unless the series has no other samples of the metric.

    Disturbed samples that remain are moved to the undisturbed series, and their keys are added to ``disturbed``.
    """
    alone = {_series_key(sample)[1:] for sample in samples if not sample.is_disturbed}
    kept = [sample for sample in samples if not sample.is_disturbed or _series_key(sample)[1:] not in alone]
    disturbed.update(_series_key(sample) for sample in kept if sample.is_disturbed)
    return [replace(sample, series=_series_key(sample)[1]) if sample.is_disturbed else sample for sample in kept]


def _is_disturbed(runs: Sequence[RunValues], disturbed: set[_SeriesKey]) -> bool:
    return any(_series_key(run.sample) in disturbed for run in runs)


def _without_outcome(difference: MetricDifference, disturbed: Sequence[bool]) -> MetricDifference:
    """Mark the difference as inconclusive if a side was ``disturbed``, since another run may have caused it."""
    sides = [side for side, is_disturbed in zip("AB", disturbed, strict=True) if is_disturbed]
    if not sides:
        return difference
    subject = f"{' and '.join(sides)} {'were' if len(sides) > 1 else 'was'}"
    reason = f"{subject} measured while another run used the same cores"
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
    scale: ValueScale,
    ranks: Shift,
    *,
    p_holm: float,
    metrics: int,
    tolerance: float,
) -> MetricDifference:
    independent, a, b = side
    levels = median(a), median(b)
    interval = ranks.interval
    relative = Interval(scale.change(interval.low, *levels), scale.change(interval.high, *levels)) if interval else None
    shift = scale.change(ranks.shift, *levels)
    outcome, reason = _outcome(sample.better, shift, relative, p_holm, tolerance)
    if outcome == "inconclusive" and metrics * least_p(len(a), len(b)) > ALPHA:
        reason = _too_few(len(a), len(b), independent, metrics)
    return MetricDifference(
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
        change = "a change" if better is None else "a regression"
        return "same", f"{change} by more than {tolerance:.3g} is excluded"
    return "inconclusive", f"too noisy: anything from {interval.low:+.1%} to {interval.high:+.1%} is possible"


def _too_few(m: int, n: int, independent: Independent, metrics: int) -> str:
    """Explain that there are too few values to find a difference, and how many are necessary."""
    enough = next((k for k in range(2, PER_SIDE + 1) if metrics * least_p(k, k) <= ALPHA), PER_SIDE + 1)
    among = f" among {metrics} metrics" if metrics > 1 else ""
    return f"{m} and {n} {independent} are too few to show a difference{among}; use at least {enough} on each side"


# Change points, the runs at which the level of a metric changed, as opposed to noise, outliers and drifts.


LEAST_RUNS = 20  # with fewer runs, noise and changes cannot be distinguished
SHORTEST = 3  # minimum number of runs between two changes, because one or two bad nights are not a change
PENALTY = 12.0  # variation that each additional change must explain, as a multiple of a single run's variance
STEP_OR_DRIFT = 10.0  # variation that a step must explain beyond a straight line, as a multiple of a run's variance
FEW = 5  # PENALTY and STEP_OR_DRIFT are multiplied by 1 + FEW / n, because the noise is only estimated from n runs
CLIPPED = 2.5  # runs are clipped to this many deviations from their neighbours' median
NEIGHBOURS = 7  # number of runs in the neighbours' median
_PERIODS = 3  # separate periods of use required to distinguish the level of a set of nodes from a change
_REWEIGHTED = 10
_MOST_CORRELATED = 0.9
_LARGE = 4.0  # levels of correlated noise rarely differ by more than this many deviations of one run
_CHANCE = 6.0  # correlations below _CHANCE / runs are attributed to chance
AROUND = 5  # number of runs before and after a step in which circumstances are compared


@dataclass(frozen=True, slots=True)
class Circumstance:
    """A condition of the runs that changed at about the same time as the level of a metric.

    Attributes:
        what: ``lock``, ``mpi``, ``stack``, ``launcher``, ``hosts`` or the name of a tuning variable.
        before: Most frequent value in the runs just before the change, or None if the variable was not set. For
            ``hosts``, the nodes that were only used before the change.
        after: The same information for the runs just after the change.
    """

    what: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change in the level of a metric.

    Attributes:
        index: Index of the first run on the new level, counted from 0.
        run: Name of that run.
        created: Time at which that run was planned.
        change: Change as a fraction of the old level (or of the new level, if the old one is 0): -0.05 means 5 % less.
        interval: 95 % confidence interval of ``change``, assuming that the change happened at ``index``.
        worse: Whether the change is a regression, or None if the metric has no direction.
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
class MetricHistory:
    """The values of a measure over time, one per run.

    ``noise`` is the relative standard deviation of a run from its level. ``reason`` explains why no changes were
    searched for, and is None if they were.
    """

    measure: Measure
    unit: str
    better: str | None
    site: str
    runs: tuple[str, ...]
    created: tuple[str, ...]
    values: tuple[float, ...]
    noise: float | None
    steps: tuple[LevelChange, ...]
    reason: str | None


def histories(samples: Iterable[Sample], *, metric: str | None = None) -> list[MetricHistory]:
    """Return the history of each metric in each series (or only of ``metric``, if given), with the oldest run first."""
    measures = by_measure(sample for sample in samples if metric in (None, sample.metric))
    return [_history(measure, runs) for measure, runs in measures.items()]


def find_changes(
    values: Sequence[float], days: Sequence[float] | None = None, hosts: Sequence[tuple[str, ...]] | None = None
) -> list[int]:
    """Return the indices at which a new level begins in ``values``.

    The logarithms of the values (or the values, if any of them is not positive) are clipped at 2.5 deviations from the
    median of seven neighbours to limit the weight of outliers. The deviation is at least the rounding error. PELT
    (Killick, Fearnhead & Eckley 2012, J. Am. Statist. Assoc. 107, 1590-1598; ``KernelCPD`` of ruptures with a linear
    kernel) divides the result into levels. Each boundary must then explain more variation than a straight line through
    the levels on both sides; the weakest boundary is dropped until all do, so that a slow drift does not count as a
    change. Both limits are in units of the long-run variance, because the noise of consecutive nights is often
    correlated. Returns an empty list for fewer than 20 values or if a value is not finite.

    Args:
        values: One value per run, starting with the oldest run.
        days: Times of the runs in days (default: one run per day).
        hosts: Nodes of each run. The level of a set of nodes that was used in several periods is subtracted.
    """
    import numpy as np

    n = len(values)
    if n < LEAST_RUNS or not all(map(math.isfinite, values)):
        return []
    times = np.arange(n, dtype=float) if days is None else np.asarray(days, dtype=float)
    scale = ValueScale.of(values)
    positions, deviation = _without_hosts(scale, values, hosts, [])
    found = _boundaries(positions, deviation, times)
    columns = _recurring(hosts) if hosts is not None else []
    if not columns or not found:
        return found
    design = np.array([[each == column for column in columns] for each in hosts or ()], dtype=float)
    offsets = np.asarray(scale.positions(values)) - positions
    unit = deviation * math.sqrt(_long_run(positions))
    return _beyond_hosts((_clipped(positions, deviation) + offsets) / unit, design, found)


def _beyond_hosts(y: NDArray[Any], design: NDArray[Any], changes: Sequence[int]) -> list[int]:
    """Drop the changes that can also be explained by the nodes that each run used, starting with the weakest change."""
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


def _boundaries(positions: NDArray[Any], deviation: float, times: NDArray[Any]) -> list[int]:
    import numpy as np
    from ruptures import KernelCPD

    n = len(positions)
    clipped = _clipped(positions, deviation) / (deviation * math.sqrt(_long_run(positions)))
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
    scale: ValueScale, values: Sequence[float], hosts: Sequence[tuple[str, ...]] | None, changes: Sequence[int]
) -> tuple[NDArray[Any], float]:
    """Remove the differences between sets of nodes, and return the remaining positions and a single run's deviation.

    Positions are values on ``scale``. Each set of nodes has a level, which is subtracted from the positions of its
    runs. The levels are fitted to the differences of consecutive runs, which changes hardly affect. If ``changes`` are
    known, the levels between them are fitted to all runs as well, which is more precise. Only sets of nodes that were
    used in several separate periods have a level: a step at which the nodes changed permanently remains a step. The
    deviation is at least the rounding error.
    """
    import numpy as np

    positions = np.asarray(scale.positions(values), dtype=float)
    columns = _recurring(hosts) if hosts is not None else []
    correction = 1.0
    if columns:
        design = np.array([[each == column for column in columns] for each in hosts or ()], dtype=float)
        if changes:
            begins = np.arange(len(positions))[:, None] >= np.array([0, *changes])
            levels = _robust_fit(np.column_stack([design, begins]), positions)[: len(columns)]
        else:
            levels = _robust_fit(np.diff(design, axis=0), np.diff(positions))
        offsets = design @ levels
        positions = positions - offsets + np.median(offsets)
        correction = math.sqrt(len(positions) / max(1, len(positions) - len(columns)))
    return positions, max(correction * _deviation(positions), scale.rounding(values))


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
    """Return the sets of nodes used in at least three separate periods, or none if all runs used the same set."""
    periods = Counter(each for index, each in enumerate(hosts) if not index or hosts[index - 1] != each)
    found = [each for each, count in periods.items() if each and count >= _PERIODS]
    return found if len(periods) > 1 else []


def _long_run(positions: NDArray[Any], *, cautious: bool = False) -> float:
    """Return the variance of the mean of many runs relative to that of independent runs with the same deviation.

    The ratio is estimated from the deviations of differences between runs that are one, two and four apart, assuming
    that the correlation of the noise decays geometrically. Differences across the strongest step are excluded if the
    step is larger than correlated noise would cause, unless ``cautious``: otherwise, 40 runs with 1 % of independent
    noise and a step of 10 % can look so correlated that the step is missed (15 of 200 simulated series).
    """
    import numpy as np

    if np.median(np.abs(np.diff(positions))) == 0:
        return 1.0
    step: int | None = _strongest_step(positions)
    if cautious or abs(np.median(positions[step:]) - np.median(positions[:step])) < _LARGE * _deviation(positions):
        step = None
    one, two, four = (_deviation(positions, apart, step) ** 2 for apart in (1, 2, 4))
    if one == 0:
        return 1.0
    # For a correlation r, two = one (1 + r) and four = one (1 + r + r^2 + r^3).
    ends = two / one - 1, (four / one - 1) / 2
    correlation = min(_MOST_CORRELATED, max(ends))
    if min(ends) < _CHANCE / len(positions):
        return 1.0
    return (1 + correlation) / (1 - correlation) ** 2


def _strongest_step(positions: NDArray[Any]) -> int:
    """Return the index that best splits the runs into two segments of at least ``SHORTEST`` runs each."""
    import numpy as np

    n = len(positions)
    first = np.arange(SHORTEST, n - SHORTEST + 1)
    sums = np.cumsum(positions - positions.mean())[first - 1]
    return int(first[np.argmax(sums**2 / (first * (n - first)))])


def _deviation(positions: NDArray[Any], apart: int = 1, step: int | None = None) -> float:
    """Estimate the noise of one run from differences between runs at distance ``apart``.

    Changes and drifts hardly affect these differences. The result is their deviation, clipped at 2.5 times their median
    absolute deviation. It is nearly as efficient as the standard deviation and robust to outliers. Differences across
    the index ``step`` are excluded.
    """
    import numpy as np

    differences = positions[apart:] - positions[:-apart]
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


def _clipped(positions: NDArray[Any], deviation: float) -> NDArray[Any]:
    import numpy as np

    half = NEIGHBOURS // 2
    padded = np.pad(positions, half, constant_values=np.nan)
    medians = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS), axis=1)
    clipped: NDArray[Any] = medians + np.clip(positions - medians, -CLIPPED * deviation, CLIPPED * deviation)
    return clipped


def _beyond_a_line(y: NDArray[Any], times: NDArray[Any], begin: int, step: int, end: int) -> float:
    """Return by how much a step reduces the sum of squares, relative to a straight line through both levels."""
    import numpy as np

    x, after = times[begin:end] - times[step], np.arange(begin, end) >= step
    line = np.stack([np.ones(end - begin), x], axis=1)
    return _squares(line, y[begin:end]) - _squares(np.column_stack([line, after]), y[begin:end])


def _squares(design: NDArray[Any], y: NDArray[Any]) -> float:
    import numpy as np

    residuals = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return float(residuals @ residuals)


def _history(measure: Measure, runs: Sequence[RunValues]) -> MetricHistory:
    import numpy as np

    sample = runs[-1].sample
    values = [run.value for run in runs]
    scale = ValueScale.of(values)
    begin = instant(runs[0].sample.created)
    days = [(instant(run.sample.created) - begin).total_seconds() / 86400 for run in runs]
    hosts = [run.sample.hosts for run in runs]
    positions, noise = np.asarray(scale.positions(values)), None
    indices = find_changes(values, days, hosts)
    if len(runs) > 2:
        positions, noise = _without_hosts(scale, values, hosts, indices)
    edges = [0, *indices, len(values)]
    levels = _clipped(positions, noise) if noise else positions
    of_mean = (noise or 0.0) * math.sqrt(_long_run(positions, cautious=True)) if indices else 0.0
    steps = tuple(
        _step(runs, scale, levels, of_mean, edges[i : i + 3], better=sample.better) for i in range(len(indices))
    )
    reason = f"{len(runs)} run(s): detecting changes requires at least {LEAST_RUNS}" if len(runs) < LEAST_RUNS else None
    return MetricHistory(
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
    scale: ValueScale,
    positions: NDArray[Any],
    noise: float,
    edges: Sequence[int],
    *,
    better: str | None,
) -> LevelChange:
    begin, index, end = edges
    old, new = float(positions[begin:index].mean()), float(positions[index:end].mean())
    half = NormalDist().inv_cdf(0.975) * noise * math.sqrt(1 / (index - begin) + 1 / (end - index))
    before, after = scale.value(old), scale.value(new)
    low, change, high = (scale.change(new - old + part, before, after) for part in (-half, 0, half))
    first = runs[index].sample
    return LevelChange(
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
    """Return the circumstances that differ between most runs before a change and most runs after it."""
    found = [
        Circumstance(what, old, new)
        for what in ("lock", "mpi", "stack", "launcher")
        if (old := _mode([getattr(s, what) for s in before])) != (new := _mode([getattr(s, what) for s in after]))
    ]
    variables = sorted({name for sample in (*before, *after) for name in sample.tuning})
    for name in variables:
        old, new = (_mode([sample.tuning.get(name) for sample in side]) for side in (before, after))
        if old != new:
            found.append(Circumstance(name, old, new))
    hosts_before = {host for sample in before for host in sample.hosts}
    hosts_after = {host for sample in after for host in sample.hosts}
    if hosts_before != hosts_after:
        removed, added = sorted(hosts_before - hosts_after), sorted(hosts_after - hosts_before)
        found.append(Circumstance("hosts", ",".join(removed) or None, ",".join(added) or None))
    return tuple(found)


def _mode(values: Sequence[str | None]) -> str | None:
    """Return the most frequent value, or the first one if several are equally frequent."""
    return max(dict.fromkeys(values), key=values.count)
