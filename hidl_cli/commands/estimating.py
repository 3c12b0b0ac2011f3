"""``hidl run --estimate``: what a run costs at most, and what its metrics are expected to be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Plan
    from hidl_cli.runs.forecast import Expected, PointForecast


def show_estimate(plan: Plan, *, json: bool) -> None:
    """Print both; nothing is run but the workload's own module that tells its metrics."""
    from dataclasses import asdict

    from hidl_cli.commands.render import emit_json, write
    from hidl_cli.plan.cost import estimate, format_estimate
    from hidl_cli.site.load import load_site

    site = load_site(plan.site)
    found = estimate(plan, site.partition(plan.partition))
    told = _forecasts(plan, site.interconnect)
    if json:
        fields: dict[str, Any] = {"site": plan.site, "partition": plan.partition, **asdict(found)}
        emit_json("hidl.estimate/1", **fields, forecasts=[each.to_json() for each in told])
        return
    write("\n".join(format_estimate(found, plan)) + "\n")
    for each in told:
        _show(each)


def _forecasts(plan: Plan, interconnect: str | None) -> list[PointForecast]:
    """What the workload's module tells; nothing where it has none, or where the stack that it needs is not there."""
    from hidl_cli.commands.render import say
    from hidl_cli.runs.forecast import find_python, forecast_plan

    if plan.workload.estimate is None:
        return []
    if plan.device == "gpu":
        say("the speed can be predicted for processors only: --device cpu", style="yellow")
        return []
    python = find_python(plan)
    if python is None:
        say(f"the speed cannot be predicted without its stack: hidl install {plan.stack}", style="yellow")
        return []
    return forecast_plan(plan, python, interconnect)


def _show(forecast: PointForecast) -> None:
    from hidl_cli.commands.render import write
    from hidl_cli.commands.tables import show_table
    from hidl_cli.plan.parameters import format_parameters

    write(f"\n{format_parameters(forecast.point) if forecast.point else 'expected'}:\n")
    rows = [
        {"nodes": placement.nodes, "ranks": placement.ranks, **dict(_columns(expected))}
        for placement, expected in zip(forecast.placements, forecast.forecast.expected, strict=True)
        if expected.problem is None
    ]
    if rows:
        show_table(rows, whole=rows[0])
    for placement, expected in zip(forecast.placements, forecast.forecast.expected, strict=True):
        if expected.problem is not None:
            write(f"{placement.ranks} rank(s): {expected.problem}\n")
    lines = [f"  {name}: {value}" for name, value in forecast.forecast.assumptions.items()]
    errors = [f"  {error}" for error in forecast.forecast.known_errors]
    write("\n".join(["assuming:", *lines, *(["how wrong it can be:", *errors] if errors else [])]) + "\n")


def _columns(expected: Expected) -> Iterator[tuple[str, str]]:
    for figure in expected.figures:
        yield (
            f"{figure.name}\n({figure.unit})",
            f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.4g}",
        )
