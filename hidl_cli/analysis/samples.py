"""Samples: measured values of runs with their provenance, as stored in the results database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from statistics import median
from typing import NamedTuple

from hidl_cli.plan.units import convert, is_reciprocal

#: Prefix of a step's series if another run used the same cores during the step.
DISTURBED = "disturbed-"


@dataclass(frozen=True)
class Sample:
    """A single value of a metric, measured by one step of a run.

    Attributes:
        created: Time at which the run was planned (ISO 8601, UTC).
        series: Digest of everything that must be equal for values to be comparable over time: site, partition,
            workload, parameters, stack, launcher, MPI library and placement. The lockfile, hosts and tuning are
            excluded, because the effects of changing them are of interest.
        rank: Number of the rank, or None for a value that belongs to the whole step.
        point: The subset of ``parameters`` that a sweep varies.
    """

    run: str
    created: str
    site: str
    partition: str | None
    workload: str
    series: str
    stack: str
    lock: str
    launcher: str
    mpi: str
    nodes: int
    ranks: int
    repetition: int
    metric: str
    unit: str
    better: str | None
    value: float
    rank: int | None = None
    hosts: tuple[str, ...] = ()
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    point: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    tuning: Mapping[str, str] = field(default_factory=dict)
    verdict: str | None = None

    @property
    def is_disturbed(self) -> bool:
        """True if another run used the same cores during the measurement."""
        return self.series.startswith(DISTURBED)


# Samples grouped by measure, with one value per repetition of each run, in chronological order.


class Measure(NamedTuple):
    """A metric of a workload at one size.

    Values whose units cannot be converted into each other belong to different measures.

    Attributes:
        series: Series of the samples, which is empty if series are compared with each other.
        point: Swept parameters, for example ``batch=32``.
        copy: Host of a concurrent copy, or ``all`` for the copies of all hosts together.
    """

    workload: str
    nodes: int
    ranks: int
    metric: str
    series: str
    point: str = ""
    copy: str = ""
    unit: str = ""

    @property
    def which(self) -> str:
        """The swept parameters and the copy's host, such as `` (batch=32)``, or an empty string without either."""
        copy = {"": "", "all": "copies"}.get(self.copy, f"copy on {self.copy}")
        words = ", ".join(filter(None, [self.point, copy]))
        return f" ({words})" if words else ""


@dataclass(frozen=True)
class RunValues:
    """The values of a measure in one run, one per repetition, and a ``sample`` that provides the run's provenance."""

    sample: Sample
    values: tuple[float, ...]

    @property
    def value(self) -> float:
        """The median over the repetitions."""
        return median(self.values)


def by_measure(
    samples: Iterable[Sample],
    *,
    across_series: bool = False,
    swept: Collection[str] | None = None,
    hosts: Collection[str] = (),
) -> dict[Measure, list[RunValues]]:
    """Group samples by measure and run, starting with the oldest run.

    All values of a metric are converted to the unit of its newest sample. If a metric was only measured for individual
    ranks, the value of a repetition is the median over the ranks.

    Args:
        samples: Samples of any number of runs.
        across_series: Whether to ignore the series. Otherwise, any difference in parameters separates measures.
        swept: Parameters that separate measures if ``across_series`` is true (default: the parameters of the samples'
            points).
        hosts: Hosts whose concurrent copies are separate measures.
    """
    from hidl_cli.plan.parameters import format_parameters  # imports pydantic, which is slow in notebooks

    every = in_common_units(samples)
    if swept is None:
        swept = swept_parameters(every)
    copies = {_step_of(sample) for sample in copies_of(every)}
    # All samples of a series have the same point, because the series depends on all parameters.
    of_series = {} if across_series else {sample.series: sample for sample in every}
    points = {series: format_parameters(_point(sample, swept)) for series, sample in of_series.items()}
    found: dict[Measure, dict[tuple[str, str], dict[int, list[Sample]]]] = {}
    for sample in every:
        copy = ""
        if _step_of(sample) in copies:
            copy = sample.hosts[0] if sample.hosts and sample.hosts[0] in hosts else "all"
        measure = Measure(
            sample.workload,
            sample.nodes,
            sample.ranks,
            sample.metric,
            "" if across_series else sample.series,
            format_parameters(_point(sample, swept)) if across_series else points[sample.series],
            copy,
            sample.unit,
        )
        runs = found.setdefault(measure, {})
        runs.setdefault((sample.created, sample.run), {}).setdefault(sample.repetition, []).append(sample)
    return {measure: [_run_values(runs[key]) for key in sorted(runs)] for measure, runs in sorted(found.items())}


def in_common_units(samples: Iterable[Sample], *, unit: str | None = None) -> list[Sample]:
    """Convert the values of each metric to a common unit.

    Values keep their unit if it cannot be converted to the common unit, or only to its reciprocal.

    Args:
        samples: Samples of any number of runs.
        unit: Unit to convert to (default: the unit of the metric's newest sample).
    """
    every = list(samples)
    newest: dict[tuple[str, str], dict[str, str]] = {}
    for sample in every:
        times = newest.setdefault((sample.workload, sample.metric), {})
        times[sample.unit] = max(times.get(sample.unit, ""), sample.created)
    wanted = {}
    for metric, times in newest.items():
        common = [] if unit is None else [unit]
        for each in sorted(times, key=lambda name: (times[name], name), reverse=True):
            wanted[(*metric, each)] = next((other for other in common if _is_convertible(each, other)), each)
            common.append(each)
    return [_in_unit(sample, wanted[sample.workload, sample.metric, sample.unit]) for sample in every]


def _is_convertible(printed: str, wanted: str) -> bool:
    try:
        return not is_reciprocal(printed, wanted)
    except ValueError:
        return False


def _in_unit(sample: Sample, unit: str) -> Sample:
    if sample.unit == unit:
        return sample
    value = float(f"{convert(sample.value, sample.unit, unit):.12g}")  # drops digits that the program did not print
    return replace(sample, value=value, unit=unit)


def swept_parameters(samples: Iterable[Sample]) -> list[str]:
    """Return the names of the parameters that a sweep varies."""
    return sorted({name for sample in samples for name in sample.point})


def copies_of(samples: Iterable[Sample]) -> list[Sample]:
    """Return the samples of steps that ran on several sets of hosts at the same time (concurrent copies)."""
    steps: dict[tuple[object, ...], list[Sample]] = {}
    for sample in samples:
        if sample.rank is None:
            steps.setdefault((*_step_of(sample), sample.repetition), []).append(sample)
    return [sample for step in steps.values() if len({each.hosts for each in step}) > 1 for sample in step]


def _step_of(sample: Sample) -> tuple[object, ...]:
    return sample.run, sample.series, sample.workload, sample.nodes, sample.ranks, sample.metric


def _point(sample: Sample, swept: Collection[str]) -> dict[str, bool | int | float | str]:
    values = {**sample.parameters, **sample.point}
    return {name: values[name] for name in sorted(swept) if name in values}


def instant(created: str) -> datetime:
    """Parse an ISO 8601 time, assuming UTC if it has no time zone.

    Raises:
        ValueError: If the time is invalid.
    """
    time = datetime.fromisoformat(created.replace("Z", "+00:00"))
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def _run_values(repetitions: dict[int, list[Sample]]) -> RunValues:
    values = [_of_step(repetitions[number]) for number in sorted(repetitions)]
    return RunValues(next(iter(repetitions.values()))[0], tuple(values))


def _of_step(samples: Sequence[Sample]) -> float:
    whole = [sample.value for sample in samples if sample.rank is None]
    return median(whole or [sample.value for sample in samples])
