"""The model of the report page, and functions that select and load its runs."""

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
from hidl_cli.analysis.changes import ValueScale
from hidl_cli.analysis.scaling import Study, from_json
from hidl_cli.documents import read_json
from hidl_cli.errors import HidlError
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.record import Run, State, Status, all_runs, find
from hidl_cli.redaction import Secrets, read_end
from hidl_cli.report.text import day, percent, when
from hidl_cli.runs.history import judge_if_ended, refresh
from hidl_cli.schedulers.decision import read_status
from hidl_cli.store.extract import series_of
from hidl_cli.store.store import Filters, Store

Pairs = tuple[tuple[str, str], ...]


class Outcome(str, Enum):
    """The outcome of a run.

    BROKEN means that the job failed. UNJUDGED means that it succeeded, but there is no verdict.
    """

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    BROKEN = "broken"
    UNJUDGED = "unjudged"
    ACTIVE = "active"

    @property
    def word(self) -> str:
        """The outcome as shown to users."""
        return _WORDS.get(self, self.value)

    @property
    def mark(self) -> str:
        """A symbol that distinguishes outcomes without relying on colour."""
        return _MARKS[self]


_WORDS = {Outcome.BROKEN: "job failed", Outcome.UNJUDGED: "no verdict", Outcome.ACTIVE: "not ended"}
_MARKS = {
    Outcome.PASS: "✓",
    Outcome.FAIL: "✗",
    Outcome.INCONCLUSIVE: "?",
    Outcome.BROKEN: "!",
    Outcome.UNJUDGED: "\N{EN DASH}",
    Outcome.ACTIVE: "…",
}


@dataclass(frozen=True)
class TunedVariable:
    """A tuning variable of a run and the origin of its value."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class MeasuredMetric:
    """The values of a metric at one size, one per repetition. Checksums are strings, and ``size`` is formatted."""

    size: str
    metric: str
    values: tuple[float | str, ...]
    unit: str


@dataclass(frozen=True)
class ReportedRun:
    """A run with its provenance.

    Attributes:
        created: Time at which the run was planned (ISO 8601, UTC).
        seconds: Duration of the job.
        hosts: Folded host list, such as ``node[01-04]``.
        host_count: Number of hosts.
        energy: Measured energy with its source, or the reason why it is not measured.
        complaint: Last lines that a failed job wrote to stderr.
        published: Published results for this kind of work and where they were measured, for reference.
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
    tuning: tuple[TunedVariable, ...]
    hosts: str
    host_count: int
    hidl: str
    directory: str
    warnings: tuple[str, ...]
    measured: tuple[MeasuredMetric, ...]
    energy: str
    complaint: str
    published: Pairs


@dataclass(frozen=True)
class OutcomeMark:
    """The outcome of one run of a regularly repeated measurement."""

    run: str
    created: str
    outcome: Outcome


@dataclass(frozen=True)
class Standing:
    """The current status of a regularly repeated measurement.

    Attributes:
        outcome: Outcome of the newest run.
        since: Creation time of the first of the ``in_a_row`` newest runs with this outcome.
        in_a_row: Number of newest runs with this outcome.
        always: Whether all runs have this outcome.
        marks: Outcomes of all runs, starting with the oldest.
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
    marks: tuple[OutcomeMark, ...]

    @property
    def newest(self) -> OutcomeMark:
        """The newest run, which determines the outcome."""
        return self.marks[-1]


@dataclass(frozen=True)
class ReportedStudy:
    """The scaling study of a run."""

    run: str
    created: str
    name: str
    where: str
    outcome: Outcome
    study: Study


@dataclass(frozen=True)
class Point:
    """A run in a history, with its value and the value's range."""

    run: str
    created: str
    value: float
    low: float | None = None
    high: float | None = None
    outcome: Outcome = Outcome.UNJUDGED


@dataclass(frozen=True)
class TrendChange:
    """A change of level in a history.

    Attributes:
        run: First run on the new level.
        before: Level before the change.
        after: Level after the change.
        differs: Descriptions of other differences between this run and the previous one.
    """

    run: str
    created: str
    before: float
    after: float
    differs: tuple[str, ...] = ()

    @property
    def relative(self) -> float:
        """The change as a fraction of the old level, or of the new one if the old one is 0: 0.05 means 5 % more."""
        scale = ValueScale.of((self.before, self.after))
        before, after = scale.positions((self.before, self.after))
        return scale.change(after - before, self.before, self.after)


@dataclass(frozen=True)
class Trend:
    """A metric over time.

    Attributes:
        better: Better direction: ``higher``, ``lower`` or None.
        points: Runs, starting with the oldest.
        range_is: Description of the range between ``low`` and ``high`` of each point.
        target: Value with which the metric is compared.
    """

    name: str
    detail: str
    where: str
    metric: str
    unit: str
    better: str | None
    points: tuple[Point, ...]
    changes: tuple[TrendChange, ...] = ()
    range_is: str = ""
    target: float | None = None

    def is_worse(self, change: TrendChange) -> bool:
        """Return whether a change is a regression, or False if the metric has no direction."""
        return {"higher": change.relative < 0, "lower": change.relative > 0}.get(self.better or "", False)

    @property
    def has_ranges(self) -> bool:
        """True if any point has a range."""
        return any(point.low is not None for point in self.points)


@dataclass(frozen=True)
class Line:
    """The values of a run by message size in bytes, in ascending order of size."""

    run: str
    created: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Curve:
    """A metric by message size for one run, and optionally for the run with which it is compared."""

    name: str
    where: str
    metric: str
    unit: str
    better: str | None
    line: Line
    baseline: Line | None


@dataclass(frozen=True)
class CurveComparison:
    """A chart of a metric by message size for several runs that differ in the suite, MPI library or site.

    ``lines`` contains pairs of a label and values. All other lines are compared with the first one.
    """

    name: str
    metric: str
    unit: str
    better: str | None
    lines: tuple[tuple[str, Line], ...]


@dataclass(frozen=True)
class PairMap:
    """A metric that a run measured between all pairs of nodes.

    Attributes:
        usual: Value of the median pair.
        names: Names of the nodes.
        cells: For each node, its performance with every other node relative to the median pair: 0.05 means 5 % better,
            regardless of the metric's direction. Cells on the diagonal are None.
        slow: Descriptions of slow nodes and links.
        exclude: Folded list of slow nodes.
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
    """A host in a heat map.

    Attributes:
        cells: Deviation from the median host in each column: 0.05 means 5 % better, and None means not measured.
        lately: Median deviation over the last columns.
        slow: Whether the host is significantly slower than the others.
    """

    host: str
    cells: tuple[float | None, ...]
    lately: float
    slow: bool


@dataclass(frozen=True)
class HeatMap:
    """The performance of each host relative to the median of all hosts, with one column per run."""

    name: str
    where: str
    metric: str
    columns: tuple[str, ...]
    rows: tuple[HeatRow, ...]

    @property
    def slow(self) -> tuple[str, ...]:
        """The slow hosts."""
        return tuple(row.host for row in self.rows if row.slow)


@dataclass(frozen=True)
class RankTimes:
    """The fractions of a rank's time: outside MPI, in MPI waiting for other ranks, and in MPI otherwise."""

    rank: int
    host: str
    outside: float
    waiting: float
    transfer: float


@dataclass(frozen=True)
class ReportedLoss:
    """A cause of lost efficiency: its name, its share, and the bounds of its confidence interval."""

    cause: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ReportedWaterfall:
    """The losses that make up the difference between an efficiency of 1 and the efficiency of a step."""

    n: int
    efficiency: float
    losses: tuple[ReportedLoss, ...]


@dataclass(frozen=True)
class ReportedProfile:
    """The profile of the largest step of a run.

    Attributes:
        waiting: Whether the waiting time was measured or estimated.
        slow: Sentences about slow ranks.
        names: First ranks of the rows and columns of ``sent``.
        sent: Bytes sent from each bin of ranks to each other bin.
    """

    name: str
    where: str
    run: str
    created: str
    ranks: int
    mpi_share: float
    waiting_share: float
    waiting: str
    slow: tuple[str, ...]
    times: tuple[RankTimes, ...]
    names: tuple[int, ...]
    sent: tuple[tuple[int, ...], ...]
    falls: tuple[ReportedWaterfall, ...]


@dataclass(frozen=True)
class Page:
    """The content of a report.

    ``generated`` is the report's creation time (ISO 8601, UTC), and ``selection`` describes the selected runs.
    """

    generated: str
    hidl: str
    selection: str
    standings: tuple[Standing, ...]
    scalings: tuple[ReportedStudy, ...]
    trends: tuple[Trend, ...]
    curves: tuple[Curve, ...]
    comparisons: tuple[CurveComparison, ...]
    pair_maps: tuple[PairMap, ...]
    heat_maps: tuple[HeatMap, ...]
    runs: tuple[ReportedRun, ...]
    notes: tuple[str, ...] = ()
    profiles: tuple[ReportedProfile, ...] = ()

    def noticed(self) -> tuple[str, ...]:
        """Return findings that are not part of any verdict: slow hosts, slow links and recent regressions."""
        slow = [
            f"Slow hosts for {m.metric} of {m.name} on {m.where}: {', '.join(m.slow)}" for m in self.heat_maps if m.slow
        ]
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
        """Return the number of measurements with each outcome, including outcomes that do not occur."""
        return count([standing.outcome for standing in self.standings])


def count(outcomes: Sequence[Outcome]) -> dict[Outcome, int]:
    """Return the number of occurrences of each outcome, including outcomes that do not occur."""
    return {outcome: outcomes.count(outcome) for outcome in Outcome}


# Runs loaded from their directories.


_COMPLAINT_LINES = 20
_COMPLAINT_BYTES = 8192


@dataclass(frozen=True)
class LoadedRun:
    """A run loaded from its directory.

    ``steps`` has the form of metrics.json. ``worlds`` contains the hosts of each step's ranks, or is empty if they are
    unknown.
    """

    run: Run
    plan: Plan
    status: Status
    steps: tuple[Mapping[str, Any], ...]
    worlds: tuple[tuple[str, ...], ...]
    versions: Mapping[str, str]
    verdict: Mapping[str, Any]

    @property
    def outcome(self) -> Outcome:
        """The outcome of the run."""
        if not self.status.state.is_final:
            return Outcome.ACTIVE
        if self.status.state is not State.COMPLETED:
            return Outcome.BROKEN
        verdict = self.verdict.get("verdict")
        return Outcome(verdict) if verdict in ("pass", "fail", "inconclusive") else Outcome.UNJUDGED

    @property
    def study(self) -> Study | None:
        """The scaling study in the verdict, or None if there is none or if this version of hidl cannot read it."""
        document = self.verdict.get("study")
        try:
            return from_json(document) if document else None
        except ValueError:
            return None

    def by_point(self) -> tuple[LoadedRun, ...]:
        """Split a sweep into one run per point, or return just the run itself if it is not a sweep."""
        if len(self.plan.points) == 1:
            return (self,)
        return tuple(self._at(point) for point in self.plan.points)

    def _at(self, point: Mapping[str, Any]) -> LoadedRun:
        numbers = [number for number, step in enumerate(self.steps) if step.get("parameters", {}) == point]
        return replace(
            self,
            plan=self.plan.at(point),
            steps=tuple(self.steps[number] for number in numbers),
            worlds=tuple(self.worlds[number] for number in numbers),
        )

    def largest(self) -> int:
        """Return the largest planned size, in the unit ``plan.unit``."""
        return max(step.size for step in self.plan.steps)

    def values(self, metric: str, size: int) -> list[float]:
        """Return a metric's numeric values in the repetitions of one size."""
        of_size = [step for step in self.steps if step.get(self.plan.unit) == size]
        found = [step["metrics"].get(metric, {}).get("value") for step in of_size]
        return [float(v) for v in found if isinstance(v, (int, float)) and not isinstance(v, bool)]

    def complaint(self) -> str:
        """Return the last lines that the job wrote to stderr, without secrets."""
        try:
            data = read_end(self.run.stderr, _COMPLAINT_BYTES)
        except OSError:
            return ""
        secrets = Secrets().learn_log(self.run.stdout).learn_log(self.run.stderr)
        return "\n".join(secrets.hide(data.decode("utf-8", "replace")).splitlines()[-_COMPLAINT_LINES:])


def load(run: Run, status: Status | None = None) -> LoadedRun:
    """Load a run from its directory.

    Args:
        run: Run to load.
        status: Status of the run (default: the status that its job last recorded).

    Raises:
        HidlError: If the directory cannot be read.
    """
    plan = plan_of(run)
    steps = tuple((run.document("metrics") or {}).get("steps", ()))
    written = [_written(run, number) for number in range(1, len(steps) + 1)]
    versions: Mapping[str, Any] = next(
        (document["versions"] for document in written if isinstance(document.get("versions"), dict)), {}
    )
    return LoadedRun(
        run=run,
        plan=plan,
        status=status or read_status(run),
        steps=steps,
        worlds=tuple(_hosts(step, document) for step, document in zip(steps, written, strict=True)),
        versions={str(name): str(version) for name, version in versions.items()},
        verdict=run.document("verdict") or {},
    )


def _written(run: Run, step: int) -> Mapping[str, Any]:
    """Read the metrics that the program wrote in a step.

    The result is empty if they cannot be read, which the verdict already reports.
    """
    try:
        document = read_json(run.metrics_file(step))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _hosts(step: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hosts of a step, from its metrics or from the world that the program recorded."""
    world = document.get("world")
    hosts = step.get("hosts") or (world.get("hosts") if isinstance(world, dict) else None)
    return tuple(str(host) for host in hosts) if isinstance(hosts, list) else ()


# Selection of the runs for a report.


def select_runs(
    names: Sequence[str],
    *,
    site: str | None = None,
    workload: str | None = None,
    since: datetime | None = None,
    most: int | None = None,
    root: Path | None = None,
) -> list[Run]:
    """Select the newest runs that match.

    Args:
        names: Names of runs (default: all runs of this user).
        site: Name of the site.
        workload: Name of the workload.
        since: Earliest creation time.
        most: Maximum number of runs.
        root: Directory of runs.

    Raises:
        UsageError: If a name is unknown.
        HidlError: If a named run cannot be read.
    """
    runs = [find(name, root) for name in names]
    newest_first = sorted(((run, plan_of(run)) for run in runs), key=lambda each: each[1].created, reverse=True)
    found = iter(newest_first) if names else _newest_first(root, since)
    fitting = (run for run, plan in found if _fits(plan, site, workload, since))
    return list(dict.fromkeys(islice(fitting, most)))


def _newest_first(root: Path | None, since: datetime | None) -> Iterator[tuple[Run, Plan]]:
    """Yield all readable runs created after ``since``, newest first. Directory names begin with the creation time."""
    for run in all_runs(root):
        try:
            plan = plan_of(run)
        except HidlError:
            continue
        if since is not None and when(plan.created) < since:
            return
        yield run, plan


def load_runs(runs: Sequence[Run]) -> tuple[list[LoadedRun], list[str]]:
    """Load runs, and return them along with notes about those that could not be read."""
    statuses, notes = _refreshed(runs)
    found = []
    for run in runs:
        try:
            found.append(load(run, statuses.get(run)))
        except HidlError as error:
            notes.append(f"run {run.id} is not shown: {error.message}")
    return found, notes


def _refreshed(runs: Sequence[Run]) -> tuple[dict[Run, Status], list[str]]:
    """Query the status of unfinished runs, and determine the verdicts of those that have ended.

    Only the user's own runs are updated. Copied directories remain unchanged, because their jobs are unknown on this
    machine.
    """
    statuses: dict[Run, Status] = {}
    notes = []
    open_ones = []
    own = paths.runs().resolve()
    for run in runs:
        if run.directory.resolve().parent != own:
            continue
        try:
            status = read_status(run)
            if status.state.is_final:
                judge_if_ended(run, status)
            elif run.document("job") is not None:
                open_ones.append(run)
        except HidlError as error:
            notes.append(f"run {run.id}: {error.message}")
    try:
        statuses = dict(zip(open_ones, refresh(open_ones), strict=True)) if open_ones else {}
    except HidlError as error:
        notes.append(f"runs that have not ended are shown with their last recorded status: {error.message}")
    return statuses, notes


def _fits(plan: Plan, site: str | None, workload: str | None, since: datetime | None) -> bool:
    return (
        (site is None or plan.site == site)
        and (workload is None or plan.workload.name == workload)
        and (since is None or when(plan.created) >= since)
    )


def related_runs(runs: Sequence[LoadedRun], store: Store) -> list[LoadedRun]:
    """Return the stored runs that precede one of ``runs`` in its series and whose directories still exist.

    Raises:
        HidlError: If the store cannot be read.
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
    """Format the run selection for the title of the page."""
    if names:
        return ", ".join(names) if len(names) < 4 else f"{len(names)} chosen runs"
    parts = [workload or "all workloads", f"on {site}" if site else "on all sites", f"since {since}" if since else ""]
    return " ".join(part for part in parts if part)
