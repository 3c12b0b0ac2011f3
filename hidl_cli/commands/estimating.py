"""``hidl run --estimate``: what a run costs at most, and what its metrics are expected to be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hidl_cli.runs.forecast import Expected, Told
    from hidl_cli.runs.plan import Plan


def show_estimate(plan: Plan, *, json: bool) -> None:
    """Print both; nothing is run but the workload's own module that tells its metrics."""
    from dataclasses import asdict

    from hidl_cli.commands.render import emit_json, write
    from hidl_cli.launch.estimate import estimate, in_words
    from hidl_cli.site.load import load_site

    site = load_site(plan.site)
    found = estimate(plan, site.partition(plan.partition))
    told = _forecasts(plan, site.interconnect)
    if json:
        fields: dict[str, Any] = {"site": plan.site, "partition": plan.partition, **asdict(found)}
        emit_json("hidl.estimate/1", **fields, forecasts=[each.to_json() for each in told])
        return
    write("\n".join(in_words(found, plan)) + "\n")
    for each in told:
        _show(each)


def _forecasts(plan: Plan, interconnect: str | None) -> list[Told]:
    """What the workload's module tells; nothing where it has none, or where the stack that it needs is not there."""
    from hidl_cli.commands.render import say
    from hidl_cli.runs.forecast import forecasts, teller

    if plan.workload.estimate is None:
        return []
    python = teller(plan)
    if python is None:
        say(f"how fast it will be cannot be told without its stack: hidl install {plan.stack}", style="yellow")
        return []
    return forecasts(plan, python, interconnect)


def _show(told: Told) -> None:
    from hidl_cli.commands.render import write
    from hidl_cli.commands.tables import show_table
    from hidl_cli.runs.parameters import in_words

    write(f"\n{in_words(told.point) if told.point else 'expected'}:\n")
    rows = [
        {"nodes": placement.nodes, "ranks": placement.ranks, **dict(_columns(expected))}
        for placement, expected in zip(told.placements, told.forecast.expected, strict=True)
        if expected.problem is None
    ]
    if rows:
        show_table(rows, whole=rows[0])
    for placement, expected in zip(told.placements, told.forecast.expected, strict=True):
        if expected.problem is not None:
            write(f"{placement.ranks} rank(s): {expected.problem}\n")
    lines = [f"  {name}: {value}" for name, value in told.forecast.assumptions.items()]
    errors = [f"  {error}" for error in told.forecast.known_errors]
    write("\n".join(["assuming:", *lines, *(["how wrong it can be:", *errors] if errors else [])]) + "\n")


def _columns(expected: Expected) -> Iterator[tuple[str, str]]:
    for figure in expected.figures:
        yield (
            f"{figure.name}\n({figure.unit})",
            f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.4g}",
        )
