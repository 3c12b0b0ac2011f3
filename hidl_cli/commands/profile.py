"""``hidl results profile``: who sent what to whom in a run with ``--profile``, who waited, and what that cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hidl_cli.commands.arguments import JsonOption, RunArgument

if TYPE_CHECKING:
    from hidl_cli.record.run import Run


class Form(str, Enum):
    """A table, a trace or an archive of a profile."""

    calls = "calls"
    ranks = "ranks"
    pairs = "pairs"
    trace = "trace"
    otf2 = "otf2"


def profile(
    run: RunArgument = None,
    *,
    step: Annotated[
        int | None, typer.Option(min=1, help="Number of the step (default: the last of the largest size).")
    ] = None,
    matrix: Annotated[bool, typer.Option("--matrix", help="Show who sent how many bytes to whom.")] = False,
    export: Annotated[
        Form | None,
        typer.Option(
            help="Write a table (calls, ranks or pairs of ranks; CSV, or Parquet by the name of the file), a trace for "
            "Perfetto, or an OTF2 archive."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File of --export; for OTF2 a new directory.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the profile of a run: calls of MPI, waiting time, slow ranks and the causes of lost efficiency."""
    from hidl_cli.commands.render import emit_json, say, write
    from hidl_cli.errors import UsageError
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.profile import describe_traffic, export_profile, find_step, read_profile, step_document
    from hidl_cli.record.run import find

    found = find(run)
    plan = plan_of(found)
    document = read_profile(found, plan)
    chosen = find_step(found, document, step)
    if (export is None) is not (output is None):
        raise UsageError("--export and --output require each other", hint="--export trace --output trace.json")
    if export is not None and output is not None:
        say(f"{export_profile(found, plan, chosen, export.value, output)} in {output}")
        return
    if json:
        whole = {**chosen, **step_document(found, plan, chosen)}
        emit_json(
            "hidl.run-profile/1", run=found.id, step=whole, steps=document["steps"], waterfalls=document["waterfalls"]
        )
        return
    for line in describe(document, chosen):
        write(f"{line}\n")
    write(f"\n{describe_traffic(found, plan, chosen, matrix=matrix)}\n")


def describe(document: Mapping[str, Any], step: Mapping[str, Any]) -> Iterator[str]:
    """Yield the main results of a profile: shares of the time, slow ranks, and the causes of lost efficiency."""
    from hidl_cli.profile import describe_slow, describe_waterfall

    yield (
        f"step {step['step']} on {step['ranks']} rank(s): MPI {step['mpi_share']:.1%} of the time, waiting for other "
        f"ranks {step['waiting_share']:.1%} ({step['waiting']})"
    )
    if step["missing_ranks"]:
        yield f"ranks without a profile: {', '.join(map(str, step['missing_ranks'][:10]))}"
    yield from describe_slow(step)
    for fall in document["waterfalls"]:
        yield from describe_waterfall(fall)


def show_profile(run: Run) -> None:
    """Print the main results of the profile of a run that has just ended, if it was recorded."""
    from hidl_cli.commands.render import say, write
    from hidl_cli.errors import UsageError
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.profile import find_step, read_profile

    plan = plan_of(run)
    if plan.profile is None:
        return
    try:
        document = read_profile(run, plan)
        lines = list(describe(document, find_step(run, document, None)))
    except UsageError as error:
        say(f"warning: {error.message}", style="yellow")
        return
    write("".join(f"{line}\n" for line in ["", *lines]))
    say(f"more: hidl results profile {run.id}")
