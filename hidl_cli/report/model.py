"""The content of the page as immutable values, independent of files, databases and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hidl_cli.analysis.changes.scale import Scale
from hidl_cli.analysis.scaling.study import Study
from hidl_cli.report.text import day, percent

Pairs = tuple[tuple[str, str], ...]


class Outcome(str, Enum):
    """How a run came out. BROKEN: its job did not end well. UNJUDGED: it did, and there was nothing to judge."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    BROKEN = "broken"
    UNJUDGED = "unjudged"
    ACTIVE = "active"

    @property
    def word(self) -> str:
        """The outcome as people read it."""
        return _WORDS.get(self, self.value)

    @property
    def mark(self) -> str:
        """A sign, for readers without colour."""
        return _MARKS[self]


_WORDS = {Outcome.BROKEN: "did not end well", Outcome.UNJUDGED: "no verdict", Outcome.ACTIVE: "not ended"}
_MARKS = {
    Outcome.PASS: "✓",
    Outcome.FAIL: "✗",
    Outcome.INCONCLUSIVE: "?",
    Outcome.BROKEN: "!",
    Outcome.UNJUDGED: "\N{EN DASH}",
    Outcome.ACTIVE: "…",
}


@dataclass(frozen=True)
class Tuned:
    """One variable of a run's tuning, and where its value comes from."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class Measured:
    """One metric at one size: ``size`` in words, ``values`` of the repetitions: numbers or, for checksums, text."""

    size: str
    metric: str
    values: tuple[float | str, ...]
    unit: str


@dataclass(frozen=True)
class RunRecord:
    """One run with its provenance. ``created`` is ISO 8601 in UTC, ``seconds`` its job's duration.

    ``hosts`` is folded (``node[01-04]``), ``host_count`` how many they are. ``complaint`` is the end of what a job
    that did not end well wrote to stderr.
    """

    id: str
    created: str
    workload: str
    title: str
    site: str
    partition: str | None
    outcome: Outcome
    state: str
    reason: str
    hint: str | None
    job: str | None
    seconds: float | None
    size: str
    parameters: Pairs
    stack: str
    lock: str
    packages: Pairs
    mpi: str
    launcher: str
    scheduler: str
    launch_line: str
    modules: tuple[str, ...]
    tuning: tuple[Tuned, ...]
    hosts: str
    host_count: int
    hidl: str
    directory: str
    warnings: tuple[str, ...]
    measured: tuple[Measured, ...]
    complaint: str


@dataclass(frozen=True)
class Mark:
    """One run in the row of outcomes of a standing."""

    run: str
    created: str
    outcome: Outcome


@dataclass(frozen=True)
class Standing:
    """How one thing that is measured again and again stands: the newest outcome, and since when it is so.

    ``since`` is when the first of the ``in_a_row`` newest runs with this outcome was planned; ``always`` where there
    is none before it. ``marks`` are all runs, the oldest first.
    """

    name: str
    detail: str
    where: str
    outcome: Outcome
    reason: str
    hint: str | None
    since: str
    in_a_row: int
    always: bool
    marks: tuple[Mark, ...]

    @property
    def newest(self) -> Mark:
        """The run that decides."""
        return self.marks[-1]


@dataclass(frozen=True)
class Scaling:
    """A scaling study of one run."""

    run: str
    created: str
    name: str
    where: str
    outcome: Outcome
    study: Study


@dataclass(frozen=True)
class Point:
    """One run in a history: its value, and the range that it may lie in."""

    run: str
    created: str
    value: float
    low: float | None = None
    high: float | None = None
    outcome: Outcome = Outcome.UNJUDGED


@dataclass(frozen=True)
class Change:
    """A step in a history: from ``run`` on the level is ``after`` where it was ``before``; ``differs``: what else
    changed between that run and the one before it, in words."""

    run: str
    created: str
    before: float
    after: float
    differs: tuple[str, ...] = ()

    @property
    def relative(self) -> float:
        """By how much the level changed as a fraction of the old, or if 0 of the new: 0.05 is 5 % up."""
        scale = Scale.of((self.before, self.after))
        before, after = scale.places((self.before, self.after))
        return scale.change(after - before, self.before, self.after)


@dataclass(frozen=True)
class Trend:
    """One figure over time, the oldest first. ``better``: ``higher``, ``lower`` or None; ``range_is`` names what
    ``low`` and ``high`` of its points are; ``target``: a line to hold it against."""

    name: str
    detail: str
    where: str
    metric: str
    unit: str
    better: str | None
    points: tuple[Point, ...]
    changes: tuple[Change, ...] = ()
    range_is: str = ""
    target: float | None = None

    def is_worse(self, change: Change) -> bool:
        """Is the level after the change the worse one? False where no direction is better."""
        return {"higher": change.relative < 0, "lower": change.relative > 0}.get(self.better or "", False)

    @property
    def has_ranges(self) -> bool:
        """Has any of its points a range?"""
        return any(point.low is not None for point in self.points)


@dataclass(frozen=True)
class Line:
    """One run's values by message size in bytes, the smallest first."""

    run: str
    created: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Curve:
    """A metric by message size: of one run, and of the run that it is held against (None: there is no other)."""

    name: str
    where: str
    metric: str
    unit: str
    better: str | None
    line: Line
    baseline: Line | None


@dataclass(frozen=True)
class Comparison:
    """A metric by message size of several runs on one picture, that differ in the suite, the MPI library or the site.

    ``lines``: what each is called, and its values; the first is what the others are held against.
    """

    name: str
    metric: str
    unit: str
    better: str | None
    lines: tuple[tuple[str, Line], ...]


@dataclass(frozen=True)
class PairMap:
    """What one run measured between every two nodes. ``cells``: for each node in ``names``, what it reaches with each
    of them against the median pair (0.05: 5 % better; None: itself), whatever the metric's direction.

    ``slow``: nodes and links that are slow, in sentences; ``exclude``: the nodes among them, folded.
    """

    name: str
    where: str
    run: str
    created: str
    metric: str
    unit: str
    usual: float
    names: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]
    slow: tuple[str, ...]
    exclude: str


@dataclass(frozen=True)
class HeatRow:
    """One host: how it differs from the usual in each column (0.05: 5 % better; None: not measured), and
    lately: over the last columns.

    ``slow``: it is worse than the others by more than they differ among themselves.
    """

    host: str
    cells: tuple[float | None, ...]
    lately: float
    slow: bool


@dataclass(frozen=True)
class HeatMap:
    """What each host yields against the median of all hosts, column by column (a run and a metric each)."""

    name: str
    where: str
    metric: str
    columns: tuple[str, ...]
    rows: tuple[HeatRow, ...]

    @property
    def slow(self) -> tuple[str, ...]:
        """The hosts that are slow."""
        return tuple(row.host for row in self.rows if row.slow)


@dataclass(frozen=True)
class Page:
    """The whole report. ``generated`` is ISO 8601 in UTC; ``selection`` says which runs it is about."""

    generated: str
    hidl: str
    selection: str
    standings: tuple[Standing, ...]
    scalings: tuple[Scaling, ...]
    trends: tuple[Trend, ...]
    curves: tuple[Curve, ...]
    comparisons: tuple[Comparison, ...]
    pair_maps: tuple[PairMap, ...]
    heat_maps: tuple[HeatMap, ...]
    runs: tuple[RunRecord, ...]
    notes: tuple[str, ...] = ()

    def noticed(self) -> tuple[str, ...]:
        """What a reader should know though no verdict says it: slow hosts, and levels that changed for the worse."""
        slow = [f"Slow in {m.metric} of {m.name} on {m.where}: {', '.join(m.slow)}" for m in self.heat_maps if m.slow]
        slow += [f"{m.name} on {m.where}: {sentence}" for m in self.pair_maps for sentence in m.slow]
        worse = [
            f"{trend.metric} of {trend.name} {trend.detail} on {trend.where} changed by "
            f"{percent(change.relative, signed=True)} on {day(change.created)}"
            for trend in self.trends
            for change in trend.changes[-1:]
            if trend.is_worse(change)
        ]
        return (*slow, *worse)

    def tally(self) -> dict[Outcome, int]:
        """How many standings have each outcome; every outcome is there."""
        return count([standing.outcome for standing in self.standings])


def count(outcomes: Sequence[Outcome]) -> dict[Outcome, int]:
    """How often each outcome occurs; every outcome is there."""
    return {outcome: outcomes.count(outcome) for outcome in Outcome}
