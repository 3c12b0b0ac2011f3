"""``hidl results``: what runs yielded."""

from __future__ import annotations

from typing import Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, complete_workloads

app = typer.Typer(no_args_is_help=True, help="What runs yielded.")


@app.callback()
def _results() -> None:
    pass


@app.command("list")
def list_(
    workload: Annotated[
        str | None, typer.Option(help="Only runs of this workload.", autocompletion=complete_workloads)
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="At most so many, the newest first.")] = 20,
    json: JsonOption = False,
) -> None:
    """List the runs that ended, with their metrics and verdicts."""
    from itertools import islice

    from hidl_cli.commands.render import emit_json
    from hidl_cli.commands.tables import show_results
    from hidl_cli.runs.history import results

    found = list(islice(results(workload=workload), number))
    if json:
        emit_json("hidl.results/1", results=found)
    else:
        show_results(found)
