"""The content of the page as immutable values, independent of files, databases and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

from hidl_cli import paths
from hidl_cli.analysis.changes import Scale
from hidl_cli.analysis.scaling import Study, from_json
from hidl_cli.documents import read_json
from hidl_cli.errors import HidlError
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.record.run import Run, State, Status, all_runs, find
from hidl_cli.report.text import day, percent, when
from hidl_cli.runs.history import judge_if_ended, refresh
from hidl_cli.store.extract import series_of
from hidl_cli.store.store import Filters, Store

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


# Load a run from its directory: plan, status, metrics, verdict, and the hosts of its ranks.


_COMPLAINT_LINES = 20
_COMPLAINT_BYTES = 8192


@dataclass(frozen=True)
class Loaded:
    """``steps`` as in metrics.json; ``worlds``: for each of them, the hosts of its ranks (empty if unknown)."""

    run: Run
    plan: Plan
    status: Status
    steps: tuple[Mapping[str, Any], ...]
    worlds: tuple[tuple[str, ...], ...]
    versions: Mapping[str, str]
    verdict: Mapping[str, Any]

    @property
    def outcome(self) -> Outcome:
        """How it came out."""
        if not self.status.state.is_final:
            return Outcome.ACTIVE
        if self.status.state is not State.COMPLETED:
            return Outcome.BROKEN
        verdict = self.verdict.get("verdict")
        return Outcome(verdict) if verdict in ("pass", "fail", "inconclusive") else Outcome.UNJUDGED

    @property
    def study(self) -> Study | None:
        """The scaling study in its verdict; None where there is none that this hidl reads."""
        document = self.verdict.get("study")
        try:
            return from_json(document) if document else None
        except ValueError:
            return None

    def by_point(self) -> tuple[Loaded, ...]:
        """Each point of a matrix, as if it had been run alone; the run itself where there is no matrix."""
        if len(self.plan.points) == 1:
            return (self,)
        return tuple(self._at(point) for point in self.plan.points)

    def _at(self, point: Mapping[str, Any]) -> Loaded:
        its = [number for number, step in enumerate(self.steps) if step.get("parameters", {}) == point]
        return replace(
            self,
            plan=self.plan.at(point),
            steps=tuple(self.steps[number] for number in its),
            worlds=tuple(self.worlds[number] for number in its),
        )

    def largest(self) -> int:
        """The largest size that was planned, in ``plan.unit``."""
        return max(step.size for step in self.plan.steps)

    def values(self, metric: str, size: int) -> list[float]:
        """What the repetitions of one size yielded, as far as it is a number."""
        of_size = [step for step in self.steps if step.get(self.plan.unit) == size]
        found = [step["metrics"].get(metric, {}).get("value") for step in of_size]
        return [float(v) for v in found if isinstance(v, (int, float)) and not isinstance(v, bool)]

    def complaint(self) -> str:
        """The last lines of what the job wrote to stderr."""
        try:
            with self.run.stderr.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _COMPLAINT_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-_COMPLAINT_LINES:])


def load(run: Run, status: Status | None = None) -> Loaded:
    """Read a run's directory; ``status`` None: as its job last recorded. ``HidlError`` if it cannot be read."""
    plan = plan_of(run)
    steps = tuple((run.document("metrics") or {}).get("steps", ()))
    written = [_written(run, number) for number in range(1, len(steps) + 1)]
    versions: Mapping[str, Any] = next(
        (document["versions"] for document in written if isinstance(document.get("versions"), dict)), {}
    )
    return Loaded(
        run=run,
        plan=plan,
        status=status or run.status(),
        steps=steps,
        worlds=tuple(_hosts(step, document) for step, document in zip(steps, written, strict=True)),
        versions={str(name): str(version) for name, version in versions.items()},
        verdict=run.document("verdict") or {},
    )


def _written(run: Run, step: int) -> Mapping[str, Any]:
    """Return what the program itself wrote in a step; empty if unreadable, since it has been judged already."""
    try:
        document = read_json(run.metrics_file(step))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _hosts(step: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hosts of a step from its metrics or from the program's world."""
    world = document.get("world")
    hosts = step.get("hosts") or (world.get("hosts") if isinstance(world, dict) else None)
    return tuple(str(host) for host in hosts) if isinstance(hosts, list) else ()


# Select the runs of a report, after updating their directories.


def chosen(
    names: Sequence[str],
    *,
    site: str | None = None,
    workload: str | None = None,
    since: datetime | None = None,
    most: int | None = None,
    root: Path | None = None,
) -> list[Run]:
    """Return the named runs, or all of this user's; of these, the newest that match.

    Raises ``UsageError`` for an unknown name, and ``HidlError`` for a named run that cannot be read.
    """
    runs = [find(name, root) for name in names]
    newest_first = sorted(((run, plan_of(run)) for run in runs), key=lambda each: each[1].created, reverse=True)
    found = iter(newest_first) if names else _newest_first(root, since)
    fitting = (run for run, plan in found if _fits(plan, site, workload, since))
    return list(dict.fromkeys(islice(fitting, most)))


def _newest_first(root: Path | None, since: datetime | None) -> Iterator[tuple[Run, Plan]]:
    """Yield all readable runs until one is too old; a run's directory is named by the time of its plan."""
    for run in all_runs(root):
        try:
            plan = plan_of(run)
        except HidlError:
            continue
        if since is not None and when(plan.created) < since:
            return
        yield run, plan


def loaded(runs: Sequence[Run]) -> tuple[list[Loaded], list[str]]:
    """Return the loaded runs, and sentences about what could not be read."""
    statuses, notes = _refreshed(runs)
    found = []
    for run in runs:
        try:
            found.append(load(run, statuses.get(run)))
        except HidlError as error:
            notes.append(f"run {run.id} is left out: {error.message}")
    return found, notes


def _refreshed(runs: Sequence[Run]) -> tuple[dict[Run, Status], list[str]]:
    """Return the schedulers' statuses of runs that have not ended, and judge those that have.

    Only this user's own runs: a copied directory stays as it is, because its job is unknown here.
    """
    statuses: dict[Run, Status] = {}
    notes = []
    open_ones = []
    own = paths.runs().resolve()
    for run in runs:
        if run.directory.resolve().parent != own:
            continue
        try:
            status = run.status()
            if status.state.is_final:
                judge_if_ended(run, status)
            elif run.document("job") is not None:
                open_ones.append(run)
        except HidlError as error:
            notes.append(f"run {run.id}: {error.message}")
    try:
        statuses = dict(zip(open_ones, refresh(open_ones), strict=True)) if open_ones else {}
    except HidlError as error:
        notes.append(f"runs that have not ended are shown as their jobs said last: {error.message}")
    return statuses, notes


def _fits(plan: Plan, site: str | None, workload: str | None, since: datetime | None) -> bool:
    return (
        (site is None or plan.site == site)
        and (workload is None or plan.workload.name == workload)
        and (since is None or when(plan.created) >= since)
    )


def related_runs(runs: Sequence[Loaded], store: Store) -> list[Loaded]:
    """Return earlier runs that measured the same, if the store knows them and their directories exist.

    Raises ``HidlError`` if the store cannot be read.
    """
    seen = {run.run.id for run in runs}
    found = []
    for run in [point for whole in runs for point in whole.by_point()]:
        largest = max(run.plan.steps, key=lambda step: step.size)
        before = Filters(series=series_of(run.plan, largest), until=when(run.plan.created))
        for stored in store.runs(before):
            if stored.run in seen:
                continue
            seen.add(stored.run)
            with suppress(HidlError):
                found.append(load(Run(Path(stored.directory))))
    return found


def format_selection(names: Sequence[str], site: str | None, workload: str | None, since: str | None) -> str:
    """Format the selection for the page's title."""
    if names:
        return ", ".join(names) if len(names) < 4 else f"{len(names)} chosen runs"
    parts = [workload or "all workloads", f"on {site}" if site else "on all sites", f"since {since}" if since else ""]
    return " ".join(part for part in parts if part)
