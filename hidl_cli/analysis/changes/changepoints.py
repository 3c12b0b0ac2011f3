"""Change points: the runs at which a metric's level changed, as opposed to noise, outliers and drifts.

The library ruptures finds the best division into levels; the steps before and after make it reliable with the noise
of a nightly. Detection and false-positive rates were simulated: see docs/explanation/verdict.md.
"""

from __future__ import annotations

import math
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


def find_changes(values: Sequence[float], days: Sequence[float] | None = None) -> list[int]:
    """Return the indices at which a new level begins in ``values``; ``days`` are their times (None: daily).

    Their places (logarithms; where a value is not positive, the values themselves) are clipped at 2.5 deviations from
    the median of seven neighbours, to limit the weight of outliers. The deviation is at least the error of rounding.
    PELT (Killick, Fearnhead & Eckley 2012, J. Am. Statist. Assoc. 107, 1590-1598; ruptures' ``KernelCPD`` with a linear
    kernel) divides them into levels. Each boundary must then explain more than a straight line through both its levels;
    of those that do not, the weakest is dropped until all do, so a slow drift is not a change. Returns nothing for
    fewer than 20 values, or if one is not finite.
    """
    import numpy as np

    n = len(values)
    if n < LEAST_RUNS or not all(map(math.isfinite, values)):
        return []
    from ruptures import KernelCPD

    scale = Scale.of(values)
    places = np.asarray(scale.places(values))
    deviation = _noise(scale, values)
    clipped = _clipped(places, deviation) / deviation
    times = np.arange(n, dtype=float) if days is None else np.asarray(days, dtype=float)
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


def _noise(scale: Scale, values: Sequence[float]) -> float:
    """Return the deviation of one run's place from its level: what is seen, and no less than the error of rounding."""
    import numpy as np

    return max(_deviation(np.asarray(scale.places(values))), scale.rounding(values))


def _deviation(places: NDArray[Any]) -> float:
    """Return the noise of one run from the differences of neighbours, which changes and drifts hardly affect.

    The deviation of the differences, clipped at 2.5 times their median absolute deviation: nearly as efficient as the
    standard deviation, and robust to outliers.
    """
    import numpy as np

    differences = np.diff(places)
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
    places = np.asarray(scale.places(values))
    noise = _noise(scale, values) if len(runs) > 2 else None
    begin = instant(runs[0].sample.created)
    days = [(instant(run.sample.created) - begin).total_seconds() / 86400 for run in runs]
    indices = find_changes(values, days)
    edges = [0, *indices, len(values)]
    levels = _clipped(places, noise) if noise else places
    steps = tuple(
        _step(runs, scale, levels, noise or 0.0, edges[i : i + 3], better=sample.better) for i in range(len(indices))
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
