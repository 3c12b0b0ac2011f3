"""``hidl status``, ``hidl cancel`` and ``hidl resume``: a run's life."""

from __future__ import annotations

from typing import Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, RunArgument


def status(
    run: RunArgument = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Without RUN: how many of the last runs.")] = 10,
    json: JsonOption = False,
) -> None:
    """Show how a run fares, or the last runs."""
    from itertools import islice

    from hidl_cli.commands.render import emit_json
    from hidl_cli.commands.tables import show_run, show_runs
    from hidl_cli.record.run import all_runs, find
    from hidl_cli.runs.history import document_of, refresh

    if run is not None:
        document = document_of(refresh(find(run)))
        if json:
            emit_json("hidl.run/1", **document)
        else:
            show_run(document)
        return
    documents = [document_of(refresh(each)) for each in islice(all_runs(), number)]
    if json:
        emit_json("hidl.runs/1", runs=documents)
    else:
        show_runs(documents)


def cancel(run: RunArgument = None) -> None:
    """End a run and all its processes."""
    from hidl_cli.commands.render import say
    from hidl_cli.record.run import find
    from hidl_cli.record.state import State
    from hidl_cli.runs.follow import scheduler_of
    from hidl_cli.runs.plan import plan_of

    record = find(run)
    scheduler = scheduler_of(plan_of(record))
    (before,) = scheduler.poll([record])
    if before.state.is_final:
        say(f"run {record.id} has ended already: {before.state.value}")
        return
    scheduler.cancel(record, state=State.CANCELLED)
    say(f"run {record.id}: {scheduler.poll([record])[0].state.value}")


def resume(run: RunArgument = None, json: JsonOption = False) -> None:
    """Follow a run that was started before (--no-wait, or hidl was killed) to its end, and judge it."""
    from hidl_cli.commands.following import follow_and_judge
    from hidl_cli.record.run import find
    from hidl_cli.runs.plan import plan_of

    record = find(run)
    follow_and_judge(record, plan_of(record), json=json)
