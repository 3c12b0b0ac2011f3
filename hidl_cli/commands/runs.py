"""``hidl status``, ``hidl cancel``, ``hidl resume``, ``hidl logs`` and ``hidl prune``."""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, PrefixOption, RunArgument, SiteOption, complete_runs
from hidl_cli.commands.render import emit_json, printable, progress, say, show_run, show_runs, show_table
from hidl_cli.errors import ExitCode, HidlError, UsageError
from hidl_cli.redaction import remember_log, shown_output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hidl_cli.record import Run
    from hidl_cli.stack.prune import PruneItem


def status(
    run: RunArgument = None,
    number: Annotated[
        int, typer.Option("--number", "-n", min=1, help="Number of runs to list if RUN is not given.")
    ] = 10,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update the list until all runs have ended.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the status of a run, or list the last runs. The scheduler is queried once for all of them."""
    from hidl_cli.plan.launch_plan import readable
    from hidl_cli.record import all_runs, find
    from hidl_cli.runs.history import refresh, run_document

    if watch and json:
        raise UsageError(
            "--watch and --json cannot be combined", hint="to wait for the result, run: hidl resume --json"
        )
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
    """Update the table of runs until all have ended. Without a terminal, print a line for each change instead."""
    from hidl_cli.commands.follow import RunTable
    from hidl_cli.runs.follow import follow
    from hidl_cli.runs.history import judge_if_ended, run_document

    with RunTable(runs) as table:
        statuses = follow(runs, tell=table.update)
    for run, status in zip(runs, statuses, strict=True):
        judge_if_ended(run, status)
    show_runs([run_document(run, status) for run, status in zip(runs, statuses, strict=True)])


def cancel(run: RunArgument = None) -> None:
    """Cancel a run with all its processes, or all unfinished runs of a sweep (--as-jobs)."""
    from hidl_cli.record import find
    from hidl_cli.runs.follow import cancel as carry_out
    from hidl_cli.runs.sweep import find_sweep

    if sweep := find_sweep(run):
        from hidl_cli.commands.sweeps import cancel_sweep

        if code := cancel_sweep(sweep):
            raise typer.Exit(code)
        return

    record = find(run)
    ended_now, status = carry_out(record)
    say(f"run {record.id}{'' if ended_now else ' has already ended'}: {status.state.value}")


def resume(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run ids, or the start or end of each (default: the last run).",
            autocompletion=complete_runs,
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Wait for all runs that have not ended.")] = False,
    json: JsonOption = False,
) -> None:
    """Wait for earlier runs and report their verdicts. The failed points of a sweep (--as-jobs) run again.

    Ctrl-C stops waiting; the runs continue.
    """
    from hidl_cli.commands.follow import follow_all, follow_and_judge
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.record import find
    from hidl_cli.runs.history import unfinished
    from hidl_cli.runs.sweep import find_sweep

    if runs and len(runs) == 1 and not all_ and (sweep := find_sweep(runs[0])):
        from hidl_cli.commands.sweeps import resume_sweep

        resume_sweep(sweep, json=json)
        return
    if runs and all_:
        raise UsageError("RUN and --all cannot be combined")
    if all_:
        records = list(unfinished())
        if not records:
            say("no unfinished runs")
    else:
        records = list(dict.fromkeys(find(name) for name in runs or ["last"]))
        if len(records) == 1:
            follow_and_judge(records[0], plan_of(records[0]), json=json, own=False)
            return
    follow_all(records, json=json)


# ``hidl logs``.


def logs(
    run: RunArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the run has ended.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Print stderr instead of stdout.")] = False,
) -> None:
    """Print the output of a run."""
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.record import find
    from hidl_cli.runs.follow import read_log

    record = find(run)
    with suppress(HidlError):  # logs written by other versions of hidl are shown too
        plan_of(record)  # remembers the secrets that the program may print
    for log in (record.stdout, record.stderr):  # a secret recognized in one place is hidden in all others too
        remember_log(log)
    begun = b""
    for chunk in read_log(record, record.stderr if stderr else record.stdout, follow=follow):
        text = begun + chunk
        whole = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        _echo(text[:whole])
        begun = text[whole:]
    _echo(begun)
    if not stderr and not _size(record.stdout) and _size(record.stderr):
        say(f"stdout is empty; to see stderr, run: hidl logs --stderr {record.id}")


def _echo(data: bytes) -> None:
    """Print part of a log. The last line of this part must be complete."""

    typer.echo(shown_output(data.decode(errors="surrogateescape")).encode(errors="surrogateescape"), nl=False)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


# ``hidl prune``.


def prune(
    *,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="DAYS", min=0, help="Keep everything used in the last DAYS days.")
    ] = 30,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, and why the rest is kept.")
    ] = False,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove unused installations, builds, logs, bisects and temporary files.

    An installation is kept if it is or was in use, if a running job, a process, a module collection or a file of hidl
    refers to it, or if hidl install would create it again.
    """
    from hidl_cli.launch.placement import longest_job
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.prune import Pruning

    where = load_site(site)
    roots = installation.roots(where, prefix)
    root = roots[-1]
    pruning = Pruning.older_than(older_than, where, roots, longest_job(where))
    items = pruning.items()
    wanted = [item for item in items if item.kept is None]
    if not json:
        _show(items if dry_run else wanted, root)
    if wanted and not dry_run and not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm("Remove?", abort=True, err=True)
    removed, failed = [], []
    for item in wanted if not dry_run else []:
        try:
            kept = pruning.remove(item, progress().say)
        except OSError as error:
            failed.append(f"{item.path}: {error.strerror or error}")
            continue
        if kept is None:
            removed.append(item)
        else:
            say(printable(f"kept {item.path}: {kept}"))
    if json:
        emit_json(
            "hidl.prune/1",
            site=where.name,
            root=str(root),
            roots=[str(place) for place in roots],
            older_than_days=older_than,
            dry_run=dry_run,
            items=[{**item.to_json(), "removed": item in removed} for item in items],
            bytes=sum(item.size for item in (wanted if dry_run else removed)),
        )
    else:
        what = "would be removed" if dry_run else "removed"
        counted = wanted if dry_run else removed
        say(f"{what}: {len(counted)}, {sum(item.size for item in counted) / 2**20:,.0f} MiB")
    for line in failed:
        say(printable(f"cannot remove {line}"))
    if failed:
        raise typer.Exit(ExitCode.MISSING_PRECONDITION)


def _show(items: list[PruneItem], root: Path) -> None:
    from datetime import datetime

    show_table(
        [
            {
                "what": item.kind,
                "where": item.path.relative_to(root) if item.path.is_relative_to(root) else item.path,
                "MiB": f"{item.size / 2**20:,.0f}",
                "last used": f"{datetime.fromtimestamp(item.used).astimezone():%Y-%m-%d}",
                "kept": item.kept or "",
            }
            for item in items
        ]
    )
