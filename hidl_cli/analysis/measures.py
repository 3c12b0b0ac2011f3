"""Group samples by measure: one value for each repetition of each run, in the order of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import median
from typing import NamedTuple

from hidl_cli.analysis.samples import Sample


class Measure(NamedTuple):
    """A metric at one size; ``series`` is empty if series are compared across."""

    workload: str
    nodes: int
    ranks: int
    metric: str
    series: str


@dataclass(frozen=True)
class RunValues:
    """One run's ``values`` of a measure by repetition; ``sample`` is one of them, for its provenance."""

    sample: Sample
    values: tuple[float, ...]

    @property
    def value(self) -> float:
        """The median of the values."""
        return median(self.values)


def by_measure(samples: Iterable[Sample], *, across_series: bool = False) -> dict[Measure, list[RunValues]]:
    """Return the runs of each measure, the oldest first.

    If a metric has only samples of single ranks, the value of a repetition is their median.
    """
    found: dict[Measure, dict[tuple[str, str], dict[int, list[Sample]]]] = {}
    for sample in samples:
        series = "" if across_series else sample.series
        measure = Measure(sample.workload, sample.nodes, sample.ranks, sample.metric, series)
        runs = found.setdefault(measure, {})
        runs.setdefault((sample.created, sample.run), {}).setdefault(sample.repetition, []).append(sample)
    return {measure: [_run_values(runs[key]) for key in sorted(runs)] for measure, runs in sorted(found.items())}


def instant(created: str) -> datetime:
    """Parse an ISO 8601 time, UTC by default; ``ValueError`` if invalid."""
    time = datetime.fromisoformat(created.replace("Z", "+00:00"))
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def _run_values(repetitions: dict[int, list[Sample]]) -> RunValues:
    values = [_of_step(repetitions[number]) for number in sorted(repetitions)]
    return RunValues(next(iter(repetitions.values()))[0], tuple(values))


def _of_step(samples: Sequence[Sample]) -> float:
    whole = [sample.value for sample in samples if sample.rank is None]
    return median(whole or [sample.value for sample in samples])
