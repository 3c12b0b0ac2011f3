"""``hidl workload``: what can be run."""

from __future__ import annotations

from typing import Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, complete_workloads

app = typer.Typer(no_args_is_help=True, help="What can be run.")


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the workloads, and where each comes from."""
    from hidl_cli.commands.render import emit_json
    from hidl_cli.commands.tables import show_table
    from hidl_cli.inputs.overlay import list_all
    from hidl_cli.runs.load import load_workload

    rows = [{"name": e.name, "title": load_workload(e.name).title, "origin": e.origin} for e in list_all("workload")]
    if json:
        emit_json("hidl.workload-list/1", workloads=rows)
    else:
        show_table(rows)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A workload's name.", autocompletion=complete_workloads)],
    json: JsonOption = False,
) -> None:
    """Show a workload: its parameters, metrics and how it scales."""
    from hidl_cli.commands.render import emit_json
    from hidl_cli.commands.tables import show_workload
    from hidl_cli.runs.load import load_workload

    workload = load_workload(name)
    if json:
        emit_json("hidl.workload/1", workload=workload.model_dump(mode="json"))
    else:
        show_workload(workload)


@app.command()
def schema() -> None:
    """Print the JSON Schema of workload files, for editors."""
    from hidl_cli.commands.render import write
    from hidl_cli.inputs.jsonschema import text

    write(text("workload"))
