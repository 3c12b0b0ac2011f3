"""Tables for people: runs, results, workloads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hidl_cli.commands.render import printable, say, stdout

if TYPE_CHECKING:
    from rich.table import Table

    from hidl_cli.runs.workload import Workload


def show_table(rows: Sequence[Mapping[str, Any]], *, whole: Collection[str] = ()) -> None:
    """Print rows of one shape as a table; the keys are the heads of the columns, ``whole`` those that never wrap."""
    if not rows:
        say("none")
        return
    stdout().print(_table(rows, whole))


def _table(rows: Sequence[Mapping[str, Any]], whole: Collection[str] = ()) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for head in rows[0] if rows else ():
        table.add_column(head, no_wrap=head in whole)
    for row in rows:
        table.add_row(
            *(Text(printable("" if value is None else str(value)), overflow="fold") for value in row.values())
        )
    return table


def show_sites(documents: Sequence[dict[str, Any]]) -> None:
    """The sites, a line each."""
    show_table(
        [
            {
                "name": document["name"],
                "status": document["status"] or "unknown",
                "scheduler": document["scheduler"] or "unknown",
                "launchers": ", ".join(document["launchers"]) or "unknown",
                "title": document["title"],
            }
            for document in documents
        ]
    )


def show_runs(documents: Sequence[dict[str, Any]]) -> None:
    """The last runs, a line each."""
    show_table(_rows(documents))


def runs_table(documents: Sequence[dict[str, Any]]) -> Table:
    """The same, to be drawn anew."""
    return _table(_rows(documents))


def _rows(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "run": document["run"],
            "state": document["state"],
            "job": document["job"],
            "step": f"{document['step']}/{document['steps_planned']}",
            "seconds": None if document["seconds"] is None else f"{document['seconds']:.1f}",
            "stack": document["stack"],
            "verdict": (document["verdict"] or {}).get("verdict"),
            "reason": document["reason"],
        }
        for document in documents
    ]


def show_run(document: dict[str, Any]) -> None:
    """One run, a line for each thing known."""
    keys = ("run", "directory", "created", "site", "stack", "workload", "launcher")
    rows = [{"": key, " ": document[key]} for key in keys]
    more = ("scheduler", "job", "state", "reason", "seconds", "exit_status")
    rows += [{"": key, " ": document[key]} for key in more]
    rows.append({"": "step", " ": f"{document['step']} of {document['steps_planned']}"})
    verdict = document["verdict"]
    if verdict:
        rows.append({"": "verdict", " ": f"{verdict['verdict'] or 'none'}: {verdict['reason']}"})
    show_table(rows)


def show_results(documents: Sequence[dict[str, Any]]) -> None:
    """Ended runs with what they yielded: the mean of the scaling metric, or of the first one, for the largest step."""
    show_table([_result(document) for document in documents])


def _result(document: dict[str, Any]) -> dict[str, Any]:
    verdict = document["verdict"] or {}
    study = verdict.get("study")
    largest = max(document["steps"], key=lambda step: step["ranks"], default=None)
    metrics: dict[str, Any] = largest["metrics"] if largest else {}
    name = next(iter(metrics), "")
    metric = metrics.get(name, {})
    value = metric.get("value")
    last = study["steps"][-1] if study else None
    return {
        "run": document["run"],
        "site": document["site"],
        "ranks": largest["ranks"] if largest else None,
        "metric": name,
        "value": f"{value:.4g}" if isinstance(value, (int, float)) else value,
        "unit": metric.get("unit"),
        "efficiency": f"{last['efficiency']:.3f}" if last else None,
        "verdict": verdict.get("verdict"),
    }


def show_workload(workload: Workload) -> None:
    """A workload's parameters and metrics."""
    stdout().print(f"{workload.name}: {workload.title}", markup=False)
    stdout().print("stacks: " + ", ".join(choice.stack for choice in workload.stacks), markup=False)
    if workload.scaling:
        scaling = workload.scaling
        stdout().print(f"scaling: {scaling.kind}, by {scaling.metric}, target {scaling.target:g}", markup=False)
    show_table(
        [
            {
                "parameter (--set)": name,
                "default": parameter.default,
                "values": ", ".join(parameter.choices) or parameter.type,
                "unit": parameter.unit,
                "": parameter.help,
            }
            for name, parameter in workload.parameters.items()
        ]
    )
    show_table(
        [
            {"metric": name, "unit": metric.unit, "better": metric.better, "required": metric.required}
            for name, metric in workload.metrics.items()
        ]
    )
