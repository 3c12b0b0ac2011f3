"""``hidl status``, ``hidl cancel`` and ``hidl resume``: a run's life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, RunArgument, complete_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hidl_cli.record.run import Run


def status(
    run: RunArgument = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Without RUN: how many of the last runs.")] = 10,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until they have ended.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the state of a run, or of the last runs. One query to the scheduler serves all of them."""
    from itertools import islice

    from hidl_cli.commands.render import emit_json, say
    from hidl_cli.commands.tables import show_run, show_runs
    from hidl_cli.errors import UsageError
    from hidl_cli.plan.launch_plan import readable
    from hidl_cli.record.run import all_runs, find
    from hidl_cli.runs.history import refresh, run_document

    if watch and json:
        raise UsageError("--watch and --json exclude each other", hint="hidl resume --json waits, and prints the end")
    runs = list(islice(readable(all_runs()), number)) if run is None else [find(run)]
    if watch:
        _watch(runs)
        return
    statuses = refresh(runs, warn=None if run is not None else lambda error: say(f"warning: {error.message}"))
    documents = [run_document(each, status) for each, status in zip(runs, statuses, strict=True)]
    if run is not None:
        if json:
            emit_json("hidl.run/1", **documents[0])
        else:
            show_run(documents[0])
    elif json:
        emit_json("hidl.runs/1", runs=documents)
    else:
        show_runs(documents)


def _watch(runs: Sequence[Run]) -> None:
    """Refresh the table of the runs until all have ended; without a terminal, a line for each change."""
    from hidl_cli.commands.following import Table
    from hidl_cli.commands.tables import show_runs
    from hidl_cli.runs.follow import follow
    from hidl_cli.runs.history import judge_if_ended, run_document

    with Table(runs) as table:
        statuses = follow(runs, tell=table.update)
    for run, status in zip(runs, statuses, strict=True):
        judge_if_ended(run, status)
    show_runs([run_document(run, status) for run, status in zip(runs, statuses, strict=True)])


def cancel(run: RunArgument = None) -> None:
    """End a run and all its processes."""
    from hidl_cli.api.launching import cancel as carry_out
    from hidl_cli.commands.render import say
    from hidl_cli.record.run import find

    record = find(run)
    ended_now, status = carry_out(record)
    say(f"run {record.id}{'' if ended_now else ' has ended already'}: {status.state.value}")


def resume(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Runs, each by its id, or the first or last characters of it (default: the last run).",
            autocompletion=complete_runs,
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every run that has not ended.")] = False,
    json: JsonOption = False,
) -> None:
    """Follow runs that were started before (--no-wait, or hidl was killed) to their ends, and judge them.

    Ctrl-C stops following; the runs go on.
    """
    from hidl_cli.commands.following import follow_all, follow_and_judge
    from hidl_cli.commands.render import say
    from hidl_cli.errors import UsageError
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.record.run import find
    from hidl_cli.runs.history import unfinished

    if runs and all_:
        raise UsageError("RUN and --all exclude each other")
    if all_:
        records = list(unfinished())
        if not records:
            say("no run is unfinished")
    else:
        records = list(dict.fromkeys(find(name) for name in runs or ["last"]))
        if len(records) == 1:
            follow_and_judge(records[0], plan_of(records[0]), json=json, own=False)
            return
    follow_all(records, json=json)
