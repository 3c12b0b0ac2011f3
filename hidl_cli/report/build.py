"""Build the page's model from loaded runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hidl_cli.analysis.changes.scale import Scale
from hidl_cli.redaction import Secrets, redact_variable
from hidl_cli.report.comparisons import comparisons
from hidl_cli.report.curves import curves, held_against
from hidl_cli.report.loaded import Loaded
from hidl_cli.report.model import Change, Mark, Outcome, Page, Point, Scaling, Standing, Trend
from hidl_cli.report.nodes import all_maps
from hidl_cli.report.pairs import pair_map
from hidl_cli.report.provenance import packages_of, record_of, size_of
from hidl_cli.report.text import counted, when
from hidl_cli.runs.provenance import Provenance, differences

#: Finds where a history steps to another level: (values, days) -> places of the first value of each new level.
Detector = Callable[[Sequence[float], Sequence[float]], Sequence[int]]

Group = tuple[Loaded, ...]


def page_of(
    runs: Sequence[Loaded],
    *,
    detect: Detector,
    generated: str,
    hidl: str,
    selection: str,
    related: Sequence[Loaded] = (),
    baseline: Loaded | Sequence[Loaded] | None = None,
    notes: Sequence[str] = (),
) -> Page:
    """Return the page about ``runs``; curves are compared with ``baseline``: a run; of several, the newest that
    measured the same (elsewhere, or on another MPI library); None: the first run of their kind.

    ``related``: further runs of the same kinds, which count in the history but are not shown themselves.
    """
    shown = {run.run.id for run in runs}
    oldest_first = sorted([*runs, *related], key=lambda run: (run.plan.created, run.run.id))
    points = [point for run in oldest_first for point in run.by_point()]
    groups = [group for group in grouped(points) if shown & {run.run.id for run in group}]
    standings = sorted((_standing(group) for group in groups), key=lambda s: (_GRAVITY.index(s.outcome), s.name))
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
            for curve in curves(group, held_against(group, baseline), name=_name(group[-1]), where=_where(group[-1]))
        ),
        comparisons=comparisons([group[-1] for group in groups]),
        pair_maps=tuple(
            found for group in groups for found in pair_map(group, name=_name(group[-1]), where=_where(group[-1]))
        ),
        heat_maps=all_maps((_name(group[-1]), _where(group[-1]), group) for group in groups),
        runs=tuple(record_of(run) for run in reversed(oldest_first) if run.run.id in shown),
        notes=tuple(notes),
    )
    return Secrets().learn(*(run.plan.to_json() for run in oldest_first)).hide_document(page)


_GRAVITY = (
    Outcome.FAIL,
    Outcome.BROKEN,
    Outcome.INCONCLUSIVE,
    Outcome.ACTIVE,
    Outcome.PASS,
    Outcome.UNJUDGED,
)


def grouped(oldest_first: Sequence[Loaded]) -> list[Group]:
    """Group the runs that measure the same at the same place, in the order of the runs."""
    groups: dict[object, list[Loaded]] = {}
    for run in oldest_first:
        groups.setdefault(_kind(run), []).append(run)
    return [tuple(group) for group in groups.values()]


def _kind(run: Loaded) -> object:
    """Return what must be equal for two runs to be compared over time; lock, hosts and tuning may differ."""
    plan = run.plan
    placements = {(step.size, step.placement) for step in plan.steps}
    return (
        (plan.site, plan.partition, plan.workload.name, plan.stack, plan.launcher, plan.mpi.name, plan.mpi.family),
        tuple(sorted((name, str(value)) for name, value in plan.telling_parameters.items())),
        (plan.unit, tuple(sorted(placements, key=lambda each: each[0]))),
    )


def _name(run: Loaded) -> str:
    """Return the workload with its non-default parameters."""
    defaults = {name: parameter.default for name, parameter in run.plan.workload.parameters.items()}
    changed = [
        f"{name}={redact_variable(name, str(value))}"
        for name, value in run.plan.parameters.items()
        if defaults.get(name) != value
    ]
    return " ".join([run.plan.workload.name, *changed])


def _where(run: Loaded) -> str:
    return "/".join(part for part in (run.plan.site, run.plan.partition) if part)


def _detail(run: Loaded) -> str:
    return f"{size_of(run.plan)} · {run.plan.stack} · {run.plan.mpi.family}"


def _standing(group: Group) -> Standing:
    newest = group[-1]
    record = record_of(newest)
    before = [place for place, run in enumerate(group) if run.outcome is not newest.outcome]
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
        marks=tuple(Mark(run.run.id, run.plan.created, run.outcome) for run in group),
    )


def _scaling(group: Group) -> Scaling | None:
    """Return the newest study of the group."""
    for run in reversed(group):
        study = run.study
        if study is not None and len(study.steps) > 1:
            return Scaling(run.run.id, run.plan.created, _name(run), _where(run), run.outcome, study)
    return None


def _trends(group: Group, detect: Detector) -> list[Trend]:
    """Yield efficiency and each metric with a direction at the largest size, for two runs or more."""
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


def _largest(run: Loaded) -> str:
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


def _point(run: Loaded, metric: str) -> Point | None:
    values = run.values(metric, run.largest())
    if not values:
        return None
    low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
    return Point(run.run.id, run.plan.created, Scale.of(values).mean(values), low, high, run.outcome)


def _with_changes(trend: Trend, detect: Detector, runs: Mapping[str, Loaded]) -> Trend:
    values = [point.value for point in trend.points]
    scale = Scale.of(values)
    times = [when(point.created).timestamp() / 86400 for point in trend.points]
    places = [0, *detect(values, [time - times[0] for time in times]), len(values)]
    changes = []
    for before, start, after in zip(places, places[1:], places[2:], strict=False):
        point, earlier = trend.points[start], trend.points[start - 1]
        changes.append(
            Change(
                point.run,
                point.created,
                scale.mean(values[before:start]),
                scale.mean(values[start:after]),
                differences(_provenance(runs[earlier.run]), _provenance(runs[point.run])),
            )
        )
    return replace(trend, changes=tuple(changes))


def _provenance(loaded: Loaded) -> Provenance:
    return Provenance(loaded.plan, loaded.status.hosts, dict(packages_of(loaded)))
