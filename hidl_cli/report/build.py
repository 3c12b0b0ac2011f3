"""Build the model of the report page from loaded runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count
from math import inf
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from hidl_cli.analysis.changes import ValueScale
from hidl_cli.analysis.nodes import describe_slow, fields_of, natural, relative_rates, slow_host_list
from hidl_cli.analysis.ranking import SUITE
from hidl_cli.analysis.scaling import nodes
from hidl_cli.errors import HidlError, SubmitRefused
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.profile import CAUSES, find_step, present_losses, read_profile, step_document
from hidl_cli.profile import describe_slow as describe_slow_ranks
from hidl_cli.record import job_id
from hidl_cli.redaction import Secrets, redact_document, redact_variable
from hidl_cli.report.model import (
    Curve,
    CurveComparison,
    HeatMap,
    HeatRow,
    Line,
    LoadedRun,
    MeasuredMetric,
    Outcome,
    OutcomeMark,
    Page,
    PairMap,
    Pairs,
    Point,
    RankTimes,
    ReportedLoss,
    ReportedProfile,
    ReportedRun,
    ReportedStudy,
    ReportedWaterfall,
    Standing,
    Trend,
    TrendChange,
    TunedVariable,
)
from hidl_cli.report.text import counted, minute, when
from hidl_cli.runs.conclude import error_for
from hidl_cli.runs.metrics import describe_energy
from hidl_cli.runs.verification import Provenance, differences, fold_or_join, format_mpi
from hidl_cli.stack.installation import at
from hidl_cli.store.references import published_figures
from hidl_workloads.repetitions import rounding

MOST_LINES = 5  # more lines cannot be distinguished


def comparisons(newest: Sequence[LoadedRun]) -> tuple[CurveComparison, ...]:
    """Return charts that compare runs with the same workload, parameters and size, such as runs with two MPI libraries.

    ``newest`` contains the newest run of each kind.
    """
    alike: dict[object, list[LoadedRun]] = {}
    for run in newest:
        alike.setdefault(_same(run), []).append(run)
    return tuple(found for runs in alike.values() if len(runs) > 1 for found in _of(runs))


def _of(runs: Sequence[LoadedRun]) -> Iterator[CurveComparison]:
    names = _names(runs)
    for metric in dict.fromkeys(metric for run in runs for metric in metrics_by_size(run)):
        drawn = [(name, run, line_of(run, metric)) for name, run in zip(names, runs, strict=True)]
        lines = tuple((name, line) for name, _, line in drawn if line is not None)[:MOST_LINES]
        if len(lines) > 1:
            first = next(run for _, run, line in drawn if line is not None)
            yield CurveComparison(first.plan.workload.name, metric, *unit_of(first, metric), lines)


def _same(run: LoadedRun) -> object:
    plan = run.plan
    parameters = tuple(sorted((name, str(value)) for name, value in plan.telling_parameters.items() if name != SUITE))
    return plan.workload.name, parameters, plan.unit, run.largest()


def _names(runs: Sequence[LoadedRun]) -> list[str]:
    """Return a label for each run, which consists of the properties in which the runs differ."""
    aspects = [
        [
            {"c": "C", "python": "Python"}.get(str(run.plan.parameters.get(SUITE, "")), ""),
            f"{run.plan.mpi.name} {run.plan.mpi.version or ''}".strip(),
            "/".join(part for part in (run.plan.site, run.plan.partition) if part),
            run.plan.stack,
            run.plan.launcher,
            counted(max(step.placement.nodes for step in run.plan.steps), "nodes"),
        ]
        for run in runs
    ]
    differ = [number for number, values in enumerate(zip(*aspects, strict=True)) if len(set(values)) > 1]
    return [
        ", ".join(values[number] for number in differ if values[number]) or run.run.id
        for values, run in zip(aspects, runs, strict=True)
    ]


# Metrics by message size, from point-to-point and collective benchmarks.


LARGEST = 2**63  # bytes; larger message sizes are invalid


def find_baseline(group: Sequence[LoadedRun], baseline: LoadedRun | Sequence[LoadedRun] | None) -> LoadedRun | None:
    """Return the run with which a group's newest run is compared, or None if there is no other run.

    Args:
        group: Runs of one kind.
        baseline: Run to compare with. Among several runs, the newest one with the workload, parameters and size of the
            group's newest run is used (default: the first run of the group that has curves).
    """
    with_sizes = [run for run in group if metrics_by_size(run)]
    if baseline is None:
        found = with_sizes[0] if with_sizes else None
    elif isinstance(baseline, LoadedRun):
        found = baseline
    else:
        same = [point for run in baseline for point in run.by_point() if with_sizes and _alike(point, with_sizes[-1])]
        found = max(same, key=lambda run: run.plan.created, default=None)
    return None if found and with_sizes and found.run.id == with_sizes[-1].run.id else found


def _alike(one: LoadedRun, other: LoadedRun) -> bool:
    first, second = (
        (run.plan.workload.name, run.plan.telling_parameters, run.plan.unit, run.largest()) for run in (one, other)
    )
    return first == second


def curves(group: Sequence[LoadedRun], other: LoadedRun | None, *, name: str, where: str) -> Iterator[Curve]:
    """Yield the curves of the newest run of ``group`` that has any, compared with those of ``other``, if given."""
    with_sizes = [run for run in group if metrics_by_size(run)]
    if not with_sizes:
        return
    newest = with_sizes[-1]
    for metric in metrics_by_size(newest):
        line = line_of(newest, metric)
        before = line_of(other, metric) if other else None
        if line is not None:
            yield Curve(name, where, metric, *unit_of(newest, metric), line, before)


def unit_of(run: LoadedRun, metric: str) -> tuple[str, str | None]:
    """Return the unit of a metric and its direction, if known."""
    promised = run.plan.workload.metrics.get(metric)
    unit = next(step["metrics"][metric]["unit"] for step in run.steps if metric in step["metrics"])
    return unit, promised.better if promised else None


def metrics_by_size(run: LoadedRun) -> list[str]:
    """Return the names of metrics that have samples by message size."""
    return list(dict.fromkeys(m for step in run.steps for m, found in step["metrics"].items() if found.get("sizes")))


def line_of(run: LoadedRun, metric: str) -> Line | None:
    """Return the geometric mean over the largest step's repetitions for each message size, or None if there are none.

    A size of 0 is only shown in the table, because the axis is logarithmic.
    """
    by_size: dict[int, list[float]] = {}
    for step in run.steps:
        found = step["metrics"].get(metric, {})
        if step.get(run.plan.unit) != run.largest() or not found.get("sizes"):
            continue
        for size, value in zip(found["sizes"], found["samples"], strict=True):
            if isinstance(value, (int, float)) and 0 < value < inf and size < LARGEST:
                by_size.setdefault(size, []).append(float(value))
    points = tuple((size, geometric_mean(values)) for size, values in sorted(by_size.items()))
    return Line(run.run.id, run.plan.created, points) if any(size for size, _ in points) else None


# Heat maps of hosts, each compared with the median of all hosts.


MOST_COLUMNS = 12
LATELY = 3  # number of columns used to find slow hosts, so that neither a single bad night nor old results matter

Columns = dict[str, dict[str, float]]


def heat_map(runs: Sequence[LoadedRun], metric: str, better: str, *, name: str, where: str) -> HeatMap | None:
    """Return the heat map of a metric over runs of one kind, or None if fewer than two hosts were measured.

    Each run that measured several hosts has its own column. Runs that measured a single host share one column, which
    contains the median of each host. Only the last ``MOST_COLUMNS`` columns are shown.
    """
    columns = _columns(runs, metric)
    hosts = sorted({host for values in columns.values() for host in values}, key=natural)
    if len(hosts) < 2:
        return None
    shown = {column: _rates(values, better) for column, values in list(columns.items())[-MOST_COLUMNS:]}
    relative = [_relative(rates) for rates in shown.values()]
    printed = [value for column in list(shown)[-LATELY:] for value in columns[column].values() if value > 0]
    slow = slow_hosts(list(shown.values())[-LATELY:], digits=rounding(printed) if printed else None)
    rows = []
    for host in hosts:
        cells = tuple(column.get(host) for column in relative)
        measured = [cell for cell in cells if cell is not None]
        if measured:
            rows.append(HeatRow(host, cells, median(measured[-LATELY:]), host in slow))
    return HeatMap(name, where, metric, tuple(shown), tuple(rows))


def slow_hosts(rounds: Sequence[Mapping[str, float]], *, digits: float | None = None) -> set[str]:
    """Return the hosts that are slow in these rounds, according to ``nodes``, which also examines concurrent copies."""
    return {node.host for node in nodes(dict(enumerate(rounds)), digits=digits) if node.slow}


def _columns(runs: Sequence[LoadedRun], metric: str) -> Columns:
    columns: Columns = {}
    single: dict[str, list[float]] = {}
    single_runs = 0
    for run in runs:
        of_run: dict[str, list[float]] = {}
        for host, value in _by_host(run, metric):
            of_run.setdefault(host, []).append(value)
        if len(of_run) > 1:
            columns[_unused(minute(run.plan.created), columns)] = {
                host: median(values) for host, values in of_run.items()
            }
        elif of_run:
            single_runs += 1
            for host, values in of_run.items():
                single.setdefault(host, []).append(median(values))
    if len(single) > 1:
        medians = {host: median(values) for host, values in single.items()}
        columns = {f"{single_runs} runs on one node": medians, **columns}
    return columns


def _unused(name: str, columns: Columns) -> str:
    """Return a unique column name, since several runs may have been planned in the same minute."""
    numbered = (f"{name} ({number})" for number in count(2))
    return next(each for each in chain([name], numbered) if each not in columns)


def _by_host(run: LoadedRun, metric: str) -> Iterator[tuple[str, float]]:
    """Yield the values of single hosts: those of concurrent copies, of ranks, or of steps that ran on one host."""
    study = run.study
    copies = [each for each in study.observations if each.kind == "copy"] if study and study.metric == metric else []
    if copies:
        yield from ((copy.hosts[0], copy.value) for copy in copies)
        return
    smallest = min(step.size for step in run.plan.steps)
    for step, hosts in zip(run.steps, run.worlds, strict=True):
        found = step["metrics"].get(metric)
        if found is None or not hosts:
            continue
        ranks = found.get("ranks")
        measured: list[tuple[str, object]] = []
        if ranks is not None and max(ranks, default=0) < len(hosts):
            measured = [(hosts[rank], sample) for rank, sample in zip(ranks, found["samples"], strict=True)]
        elif len(set(hosts)) == 1 and step.get(run.plan.unit) == smallest:
            measured = [(hosts[0], found["value"])]
        yield from ((host, float(value)) for host, value in measured if isinstance(value, (int, float)))


def _rates(values: Mapping[str, float], better: str) -> dict[str, float]:
    """Convert values to rates, for which higher is better."""
    positive = {host: value for host, value in values.items() if value > 0}
    return {host: 1 / value for host, value in positive.items()} if better == "lower" else positive


def _relative(rates: Mapping[str, float]) -> dict[str, float]:
    """Return each host's deviation from the median: 0.05 means 5 % better."""
    middle = median(rates.values()) if rates else 1.0
    return {host: rate / middle - 1 for host, rate in rates.items()}


def all_maps(groups: Iterable[tuple[str, str, Sequence[LoadedRun]]]) -> tuple[HeatMap, ...]:
    """Return heat maps of all metrics that have a direction; ``groups`` contains (name, site, runs of one kind)."""
    maps = []
    for name, where, runs in groups:
        for metric, promised in runs[-1].plan.workload.metrics.items():
            if promised.better is None:
                continue
            found = heat_map(runs, metric, promised.better, name=name, where=where)
            if found is not None:
                maps.append(found)
    return tuple(maps)


# Maps of metrics measured between all pairs of nodes, for the newest run of each kind.


MOST_NODES = 64  # with more nodes, the cells of a map would be unreadable


def pair_map(group: Sequence[LoadedRun], *, name: str, where: str) -> Iterator[PairMap]:
    """Yield the maps of the newest run that measured pairs of nodes, one per metric."""
    for run in reversed(group):
        fields = fields_of(run.plan.workload.metrics, run.steps)
        for each in fields:
            rates = relative_rates(each)
            names = each.names if len(each.names) <= MOST_NODES else ()
            yield PairMap(
                name=name,
                where=where,
                run=run.run.id,
                created=run.plan.created,
                metric=each.metric,
                unit=each.unit,
                usual=median(each.values.values()),
                names=names,
                cells=tuple(tuple(rates[a, b] - 1 if (a, b) in rates else None for b in names) for a in names),
                slow=tuple(describe_slow([each])),
                exclude=slow_host_list([each]),
            )
        if fields:
            return


# Runs with their provenance.


def record_of(loaded: LoadedRun) -> ReportedRun:
    """Return a run and its provenance, formatted for the report."""
    plan, status = loaded.plan, loaded.status
    reason, hint = _why(loaded)
    return ReportedRun(
        id=loaded.run.id,
        created=plan.created,
        workload=plan.workload.name,
        title=plan.workload.title,
        site=plan.site,
        partition=plan.partition,
        outcome=loaded.outcome,
        state=status.state.value,
        reason=reason,
        hint=hint,
        job=job_id(loaded.run.document("job") or {}, status),
        seconds=status.seconds,
        size=size_of(plan),
        parameters=_pairs(redact_document(dict(plan.parameters))),
        stack=plan.stack,
        lock=plan.lock,
        packages=packages_of(loaded),
        mpi=format_mpi(plan),
        launcher=plan.launcher,
        scheduler=plan.scheduler,
        launch_line=plan.command_line(plan.steps[-1]),
        modules=plan.modules,
        tuning=tuple(
            TunedVariable(setting.name, redact_variable(setting.name, setting.value), setting.origin)
            for setting in plan.tuning
        ),
        hosts=fold_or_join(status.hosts),
        host_count=len(set(status.hosts)),
        hidl=plan.hidl,
        directory=str(loaded.run.directory),
        warnings=plan.warnings,
        measured=tuple(_measured(loaded)),
        energy=describe_energy(loaded.steps) if loaded.steps else "",
        complaint=loaded.complaint() if loaded.outcome is Outcome.BROKEN else "",
        published=tuple(
            (f"{each['title']}: {each['figure']}", f"{each['scale']}; {each['platform']}; {each['source']}")
            for each in published_figures(plan.workload.name, plan.parameters, is_study=plan.is_study)
        ),
    )


def size_of(plan: Plan) -> str:
    """Format the planned sizes and repetitions, such as ``1, 2, 4 ranks, 5 times``."""
    sizes = sorted({step.size for step in plan.steps})
    unit = plan.unit.removesuffix("s") if sizes == [1] else plan.unit
    times = max(step.repetition for step in plan.steps)
    return f"{', '.join(map(str, sizes))} {unit}" + (f", {times} times" if times > 1 else "")


def packages_of(loaded: LoadedRun) -> Pairs:
    """Return the versions reported by the program, and the packages of the installation if it still exists."""
    installation = at(Path(loaded.plan.prefix))
    of_the_stack: Mapping[str, Any] = {}
    if installation is not None and installation.lock == loaded.plan.lock:
        of_the_stack = installation.manifest["packages"]
    return _pairs({**loaded.versions, **of_the_stack})


def _why(loaded: LoadedRun) -> tuple[str, str | None]:
    """Return the reason for the outcome, and a hint."""
    if loaded.outcome is Outcome.BROKEN:
        error = error_for(loaded.run, loaded.status)
        first = error.message.partition("\n")[0]
        return first if isinstance(error, SubmitRefused) else first.removeprefix(f"run {loaded.run.id} "), error.hint
    if loaded.outcome is Outcome.ACTIVE:
        status = loaded.status
        progress = f"{status.state.value.lower()}, step {status.step} of {len(loaded.plan.steps)}"
        return f"{progress}: {status.reason}" if status.reason else progress, None
    return str(loaded.verdict.get("reason") or ""), _optional(loaded.verdict.get("hint"))


def _measured(loaded: LoadedRun) -> Iterator[MeasuredMetric]:
    """Yield each metric's values at each size over all repetitions."""
    found: dict[tuple[int, str, str], list[float | str]] = {}
    for step in loaded.steps:
        for metric, measured in step["metrics"].items():
            value = measured["value"]
            values = found.setdefault((step[loaded.plan.unit], metric, str(measured["unit"])), [])
            values.append(value if isinstance(value, (int, float)) else str(value))
    for (size, metric, unit), values in found.items():
        yield MeasuredMetric(counted(size, loaded.plan.unit), metric, tuple(values), unit)


def _pairs(values: Mapping[str, Any]) -> Pairs:
    return tuple((str(name), str(value)) for name, value in values.items())


def _optional(value: Any) -> str | None:
    return None if value is None else str(value)


#: Function that detects level changes: (values, days) -> indices of the first value on each new level.
Detector = Callable[[Sequence[float], Sequence[float]], Sequence[int]]

Group = tuple[LoadedRun, ...]


def page_of(
    runs: Sequence[LoadedRun],
    *,
    detect: Detector,
    generated: str,
    hidl: str,
    selection: str,
    related: Sequence[LoadedRun] = (),
    baseline: LoadedRun | Sequence[LoadedRun] | None = None,
    notes: Sequence[str] = (),
) -> Page:
    """Build the report page.

    Args:
        runs: Runs to show.
        detect: Function that detects level changes.
        generated: Creation time of the page (ISO 8601, UTC).
        hidl: Version of hidl.
        selection: Description of the selected runs.
        related: Other runs of the same kinds, which are part of the histories but not shown individually.
        baseline: Run with which curves are compared, or several runs, from which the newest one with the same workload,
            parameters and size is used (default: the first run of each kind).
        notes: Notes to show on the page.
    """
    shown = {run.run.id for run in runs}
    oldest_first = sorted([*runs, *related], key=lambda run: (run.plan.created, run.run.id))
    points = [point for run in oldest_first for point in run.by_point()]
    groups = [group for group in grouped(points) if shown & {run.run.id for run in group}]
    standings = sorted((_standing(group) for group in groups), key=lambda s: (_BY_SEVERITY.index(s.outcome), s.name))
    page = Page(
        generated=generated,
        hidl=hidl,
        selection=selection,
        standings=tuple(standings),
        scalings=tuple(found for group in groups if (found := _scaling(group)) is not None),
        trends=tuple(trend for group in groups for trend in _trends(group, detect)),
        curves=tuple(
            curve
            for group in groups
            for curve in curves(group, find_baseline(group, baseline), name=_name(group[-1]), where=_where(group[-1]))
        ),
        comparisons=comparisons([group[-1] for group in groups]),
        pair_maps=tuple(
            found for group in groups for found in pair_map(group, name=_name(group[-1]), where=_where(group[-1]))
        ),
        heat_maps=all_maps((_name(group[-1]), _where(group[-1]), group) for group in groups),
        runs=tuple(record_of(run) for run in reversed(oldest_first) if run.run.id in shown),
        notes=tuple(notes),
        profiles=tuple(
            found for group in groups for found in profile_of(group, name=_name(group[-1]), where=_where(group[-1]))
        ),
    )
    secrets = Secrets().learn_environment().learn(*(run.plan.to_json() for run in oldest_first))
    return secrets.hide_document(page)


_BY_SEVERITY = (
    Outcome.FAIL,
    Outcome.BROKEN,
    Outcome.INCONCLUSIVE,
    Outcome.ACTIVE,
    Outcome.PASS,
    Outcome.UNJUDGED,
)


def grouped(oldest_first: Sequence[LoadedRun]) -> list[Group]:
    """Group runs of the same kind on the same partition, preserving their order."""
    groups: dict[object, list[LoadedRun]] = {}
    for run in oldest_first:
        groups.setdefault(_kind(run), []).append(run)
    return [tuple(group) for group in groups.values()]


def _kind(run: LoadedRun) -> object:
    """Return the properties that runs must share to be compared over time; lock, hosts and tuning may differ."""
    plan = run.plan
    placements = {(step.size, step.placement) for step in plan.steps}
    return (
        (plan.site, plan.partition, plan.workload.name, plan.stack, plan.launcher, plan.mpi.name, plan.mpi.family),
        tuple(sorted((name, str(value)) for name, value in plan.telling_parameters.items())),
        (plan.unit, tuple(sorted(placements, key=lambda each: each[0]))),
    )


def _name(run: LoadedRun) -> str:
    """Return the workload and its non-default parameters."""
    defaults = {name: parameter.default for name, parameter in run.plan.workload.parameters.items()}
    changed = [
        f"{name}={redact_variable(name, str(value))}"
        for name, value in run.plan.parameters.items()
        if defaults.get(name) != value
    ]
    return " ".join([run.plan.workload.name, *changed])


def _where(run: LoadedRun) -> str:
    return "/".join(part for part in (run.plan.site, run.plan.partition) if part)


def _detail(run: LoadedRun) -> str:
    return f"{size_of(run.plan)} · {run.plan.stack} · {run.plan.mpi.family}"


def _standing(group: Group) -> Standing:
    newest = group[-1]
    record = record_of(newest)
    before = [index for index, run in enumerate(group) if run.outcome is not newest.outcome]
    first = before[-1] + 1 if before else 0
    return Standing(
        name=_name(newest),
        detail=_detail(newest),
        where=_where(newest),
        outcome=newest.outcome,
        reason=record.reason,
        hint=record.hint,
        since=group[first].plan.created,
        in_a_row=len(group) - first,
        always=not before,
        marks=tuple(OutcomeMark(run.run.id, run.plan.created, run.outcome) for run in group),
    )


def _scaling(group: Group) -> ReportedStudy | None:
    """Return the newest scaling study of a group."""
    for run in reversed(group):
        study = run.study
        if study is not None and len(study.steps) > 1:
            return ReportedStudy(run.run.id, run.plan.created, _name(run), _where(run), run.outcome, study)
    return None


def _trends(group: Group, detect: Detector) -> list[Trend]:
    """Return the trends of the efficiency, and of each metric with a direction at the largest size, over all runs."""
    newest = group[-1]
    found = [_efficiency_trend(group)] if newest.plan.is_study else []
    for metric, promised in newest.plan.workload.metrics.items():
        if promised.better is not None:
            points = tuple(point for run in group if (point := _point(run, metric)) is not None)
            found.append(
                Trend(
                    _name(newest),
                    _largest(newest),
                    _where(newest),
                    metric,
                    promised.unit,
                    promised.better,
                    points,
                    range_is="range of the repetitions",
                )
            )
    by_id = {run.run.id: run for run in group}
    return [_with_changes(trend, detect, by_id) for trend in found if len(trend.points) > 1]


def _largest(run: LoadedRun) -> str:
    return f"at {counted(run.largest(), run.plan.unit)}"


def _efficiency_trend(group: Group) -> Trend:
    points = []
    for run in group:
        study = run.study
        if study is None or len(study.steps) < 2:
            continue
        step = study.steps[-1]
        low, high = (step.interval.low, step.interval.high) if step.interval else (None, None)
        points.append(Point(run.run.id, run.plan.created, step.efficiency, low, high, run.outcome))
    newest = group[-1]
    return Trend(
        _name(newest),
        _largest(newest),
        _where(newest),
        "efficiency",
        "efficiency",
        "higher",
        tuple(points),
        range_is="confidence interval",
        target=newest.plan.target,
    )


def _point(run: LoadedRun, metric: str) -> Point | None:
    values = run.values(metric, run.largest())
    if not values:
        return None
    low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
    return Point(run.run.id, run.plan.created, ValueScale.of(values).mean(values), low, high, run.outcome)


def _with_changes(trend: Trend, detect: Detector, runs: Mapping[str, LoadedRun]) -> Trend:
    values = [point.value for point in trend.points]
    scale = ValueScale.of(values)
    times = [when(point.created).timestamp() / 86400 for point in trend.points]
    edges = [0, *detect(values, [time - times[0] for time in times]), len(values)]
    changes = []
    for before, start, after in zip(edges, edges[1:], edges[2:], strict=False):
        point, earlier = trend.points[start], trend.points[start - 1]
        changes.append(
            TrendChange(
                point.run,
                point.created,
                scale.mean(values[before:start]),
                scale.mean(values[start:after]),
                differences(_provenance(runs[earlier.run]), _provenance(runs[point.run])),
            )
        )
    return replace(trend, changes=tuple(changes))


def _provenance(loaded: LoadedRun) -> Provenance:
    return Provenance(loaded.plan, loaded.status.hosts, dict(packages_of(loaded)))


MOST_CELLS = 32  # more cells would be too small
MOST_RANKS = 64  # if there are more ranks, only the slowest and the fastest are shown


def profile_of(group: Sequence[LoadedRun], *, name: str, where: str) -> Iterator[ReportedProfile]:
    """Yield the profile of the newest profiled run in a group, if there is one."""
    for loaded in reversed(group):
        if loaded.plan.profile is None or not loaded.status.state.is_final:
            continue
        with suppress(HidlError):  # nothing was recorded
            document = read_profile(loaded.run, loaded.plan)
            step = find_step(loaded.run, document, None)
            yield _profile(loaded, document, {**step, **step_document(loaded.run, loaded.plan, step)}, name, where)
            return


def _profile(
    loaded: LoadedRun, document: Mapping[str, Any], step: Mapping[str, Any], name: str, where: str
) -> ReportedProfile:
    names, sent = _folded(step["matrix"])
    return ReportedProfile(
        name=name,
        where=where,
        run=loaded.run.id,
        created=loaded.plan.created,
        ranks=step["ranks"],
        mpi_share=step["mpi_share"],
        waiting_share=step["waiting_share"],
        waiting=step["waiting"],
        slow=tuple(describe_slow_ranks(step)),
        times=tuple(_times(step["by_rank"])),
        names=names,
        sent=sent,
        falls=tuple(
            ReportedWaterfall(
                fall["n"],
                fall["efficiency"],
                tuple(
                    ReportedLoss(CAUSES[loss["cause"]], loss["value"], *(loss["interval"] or (None, None)))
                    for loss in present_losses(fall)
                ),
            )
            for fall in document["waterfalls"]
        ),
    )


def _folded(matrix: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Sum the channels of a matrix in at most ``MOST_CELLS`` groups of ranks; return their first ranks and the sums."""
    import numpy as np

    whole = np.sum([np.array(each, dtype=np.int64) for each in matrix["bytes"].values()], axis=0)
    width = -(-len(whole) // MOST_CELLS)
    starts = np.arange(0, len(whole), width)
    sums = np.add.reduceat(np.add.reduceat(whole, starts, axis=0), starts, axis=1)
    names = tuple((starts * matrix["ranks_per_cell"]).tolist())
    return names, tuple(tuple(row) for row in sums.tolist())


def _times(ranks: Sequence[Mapping[str, Any]]) -> Iterator[RankTimes]:
    found = []
    for each in ranks:
        wall = each["wall_seconds"] or 1.0
        mpi = min(each["mpi_seconds"] / wall, 1.0)
        waiting = min(each["waiting_seconds"] / wall, mpi)
        found.append(RankTimes(each["rank"], each["host"], 1 - mpi, waiting, mpi - waiting))
    if len(found) > MOST_RANKS:
        slowest = sorted(found, key=lambda each: -each.outside)
        found = slowest[: MOST_RANKS // 2] + slowest[-MOST_RANKS // 2 :]
    yield from found
