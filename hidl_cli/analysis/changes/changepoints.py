"""Change points: the runs at which a metric's level changed, as opposed to noise, outliers and drifts.

The library ruptures finds the best division into levels; the steps before and after make it reliable with the noise
of a nightly. Detection and false-positive rates were simulated: see docs/explanation/verdict.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Any

from hidl_cli.analysis.changes.scale import Scale
from hidl_cli.analysis.measures import Measure, RunValues, by_measure, instant
from hidl_cli.analysis.samples import Sample
from hidl_cli.analysis.statistics import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
