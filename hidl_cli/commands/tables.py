"""Tables for people: runs, results, workloads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hidl_cli.commands.render import printable, say, stdout

if TYPE_CHECKING:
    from rich.table import Table

    from hidl_cli.plan.workload import DeviceChoice, Parameter, Workload


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
                "runs": "yes" if document["runs"] else f"no: {document['why_not']}",
                "title": document["title"],
            }
            for document in documents
        ]
    )


def show_runs(documents: Sequence[dict[str, Any]]) -> None:
    """The last runs, a line each."""
    show_table(_rows(documents))


def runs_table(documents: Sequence[dict[str, Any]]) -> Table:
    """The same, to be redrawn."""
    return _table(_rows(documents))


def _rows(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "run": document["run"],
            "state": document["state"],
            "job": document["job"],
            "step": f"{document['step']}/{document['steps_planned']}",
            "seconds": _format_seconds(document["seconds"]),
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
    more = ("scheduler", "job", "state", "reason")
    rows += [{"": key, " ": document[key]} for key in more]
    rows += [
        {"": "seconds", " ": _format_seconds(document["seconds"])},
        {"": "exit_status", " ": document["exit_status"]},
    ]
    rows.append({"": "step", " ": f"{document['step']} of {document['steps_planned']}"})
    rows += [{"": "earlier attempt", " ": _format_attempt(each)} for each in document["attempts"]]
    verdict = document["verdict"]
    if verdict:
        rows.append({"": "verdict", " ": f"{verdict['verdict'] or 'none'}: {verdict['reason']}"})
    rows += [{"": "cause", " ": f"{cause['title']} ({cause['rule']})"} for cause in document["causes"][:3]]
    show_table(rows)


def _format_seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.1f}"


def _format_attempt(attempt: dict[str, Any]) -> str:
    """Format an attempt after which the job was put back into the queue: ``CANCELLED after 35 s on n1, n2``."""
    ran = attempt["started"] is not None and attempt["ended"] is not None
    after = f" after {attempt['ended'] - attempt['started']:.0f} s" if ran else ""
    return f"{attempt['state']}{after} on {', '.join(attempt['hosts']) or 'no host'}"


def show_results(documents: Sequence[dict[str, Any]]) -> None:
    """Judged runs with what they yielded: the mean of one metric for the largest step."""
    show_table([_result(document) for document in documents], whole=("run",))


def _result(document: dict[str, Any]) -> dict[str, Any]:
    largest = max((step["ranks"] for step in document["steps"]), default=None)
    metrics = [step["metrics"] for step in document["steps"] if step["ranks"] == largest]
    names = [name for each in metrics for name in each]
    name = document["metric"] if document["metric"] in names or not names else names[0]
    found = [each[name] for each in metrics if name in each]
    return {
        "run": document["run"],
        "site": document["site"],
        "ranks": largest,
        "metric": name,
        "value": f"{sum(metric['value'] for metric in found) / len(found):.4g}" if found else None,
        "unit": found[0]["unit"] if found else None,
        "efficiency": None if document["efficiency"] is None else f"{document['efficiency']:.3f}",
        "verdict": document["verdict"]["verdict"],
    }


def show_result(document: dict[str, Any]) -> None:
    """One judged run: where it comes from, and each metric of each size and point over its repetitions."""
    from hidl_cli.analysis.overhead import overheads
    from hidl_cli.plan.parameters import format_parameters
    from hidl_cli.report.tables.overhead import overhead_table

    keys = ("run", "directory", "created", "site", "partition", "workload", "stack", "lock", "launcher", "mpi")
    rows = [{"": key, " ": document[key]} for key in keys]
    for key in ("parameters", "tuning"):
        rows.append({"": key, " ": ", ".join(f"{name}={value}" for name, value in document[key].items())})
    verdict = document["verdict"]
    rows.append({"": "verdict", " ": f"{verdict['verdict'] or 'none'}: {verdict['reason']}"})
    show_table(rows)
    values: dict[tuple[str, int, int, str, str], list[float]] = {}
    for step in document["steps"]:
        for name, metric in step["metrics"].items():
            measure = (format_parameters(step["parameters"]), step["nodes"], step["ranks"], name, metric["unit"])
            values.setdefault(measure, []).append(metric["value"])
    show_table(
        [
            {
                **({"matrix": point} if any(step["parameters"] for step in document["steps"]) else {}),
                "nodes": nodes,
                "ranks": ranks,
                "metric": name,
                "mean": f"{sum(found) / len(found):.6g}",
                "least": f"{min(found):.6g}",
                "most": f"{max(found):.6g}",
                "unit": unit,
                "repetitions": len(found),
            }
            for (point, nodes, ranks, name, unit), found in values.items()
        ]
    )
    for overhead in overheads(document["steps"]):
        stdout().print(overhead_table(overhead))


def show_workload(workload: Workload) -> None:
    """A workload's parameters and metrics."""
    from hidl_cli.plan.patterns import names_of

    found = {name: each.pattern for each in workload.program.patterns for name in names_of([each])}
    stdout().print(f"{workload.name}: {workload.title}", markup=False)
    stdout().print("stacks: " + ", ".join(choice.stack for choice in workload.stacks), markup=False)
    devices = ", ".join(map(_format_device, workload.devices or ()))
    stdout().print(f"devices: {devices or 'the program decides'}", markup=False)
    if workload.scaling:
        scaling = workload.scaling
        stdout().print(f"scaling: {scaling.kind}, by {scaling.metric}, target {scaling.target:g}", markup=False)
    show_table(
        [
            {
                "parameter (--set)": name,
                "default": _format_default(parameter),
                "values": ", ".join(parameter.choices) or parameter.type,
                "unit": parameter.unit,
                "": parameter.help,
            }
            for name, parameter in workload.parameters.items()
        ]
    )
    show_table(
        [
            {
                "metric": name,
                "unit": metric.unit,
                "better": metric.better,
                "required": metric.required,
                **({"pattern": found.get(name)} if found else {}),
            }
            for name, metric in workload.metrics.items()
        ]
    )


def _format_default(parameter: Parameter) -> str:
    """A default, and those on GPUs: ``8 (GPUs: 256 or 64)``."""
    on_gpus = " or ".join(str(each.value) for each in parameter.on_gpus)
    return f"{parameter.default} (GPUs: {on_gpus})" if on_gpus else str(parameter.default)


def _format_device(choice: DeviceChoice) -> str:
    """A device with its conditions: ``gpu (buffer=cupy; requires cupy)``."""
    from hidl_cli.plan.parameters import format_parameters

    when = {name: "|".join(map(str, values)) for name, values in choice.when.items()}
    conditions = [format_parameters(when)] if when else []
    conditions += [f"requires {', '.join(choice.packages)}"] if choice.packages else []
    return choice.device + (f" ({'; '.join(conditions)})" if conditions else "")
