"""``hidl status``, ``hidl cancel`` and ``hidl resume``: a run's life."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, PrefixOption, RunArgument, SiteOption, complete_runs
from hidl_cli.errors import HidlError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hidl_cli.record.run import Run
    from hidl_cli.stack.pruning import PruneItem


def status(
    run: RunArgument = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Without RUN: how many of the last runs.")] = 10,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until they have ended.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the state of a run, or of the last runs. One query to the scheduler serves all of them."""
    from itertools import islice

    from hidl_cli.commands.render import emit_json, say, show_run, show_runs
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
    from hidl_cli.commands.render import show_runs
    from hidl_cli.runs.follow import follow
    from hidl_cli.runs.history import judge_if_ended, run_document

    with Table(runs) as table:
        statuses = follow(runs, tell=table.update)
    for run, status in zip(runs, statuses, strict=True):
        judge_if_ended(run, status)
    show_runs([run_document(run, status) for run, status in zip(runs, statuses, strict=True)])


def cancel(run: RunArgument = None) -> None:
    """End a run and all its processes."""
    from hidl_cli.api.options import cancel as carry_out
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


# ``hidl logs``: what a run printed.


def logs(
    run: RunArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Print its stderr, not its stdout.")] = False,
) -> None:
    """Print what a run's program printed."""
    from hidl_cli.commands.render import say
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.record.run import find
    from hidl_cli.redaction import shown_output
    from hidl_cli.runs.follow import read_log

    record = find(run)
    with suppress(HidlError):  # the log of a run of another version is shown too
        plan_of(record)  # whose secrets its program may print
    for log in (record.stdout, record.stderr):  # what one stream tells to be a secret is hidden in the other too
        shown_output(_end(log))
    begun = b""
    for chunk in read_log(record, record.stderr if stderr else record.stdout, follow=follow):
        text = begun + chunk
        whole = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        _echo(text[:whole])
        begun = text[whole:]
    _echo(begun)
    if not stderr and not _size(record.stdout) and _size(record.stderr):
        say(f"it printed nothing, but complained: hidl logs --stderr {record.id}")


def _echo(data: bytes) -> None:
    """Print a part of a log that ends with a line."""
    from hidl_cli.redaction import shown_output

    typer.echo(shown_output(data.decode(errors="surrogateescape")).encode(errors="surrogateescape"), nl=False)


def _end(log: Path) -> str:
    """Return the last 256 KiB of a log; "" if it does not exist."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, _size(log) - (256 << 10)))
            return file.read().decode(errors="surrogateescape")
    except OSError:
        return ""


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


# ``hidl prune``.


def prune(
    *,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="DAYS", min=0, help="Keep what was used in the last DAYS days.")
    ] = 30,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, and why the rest stays.")
    ] = False,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove installations, builds, logs, bisects and temporary files that nobody needs any more.

    An installation stays if it is in use or was so before, if a run under way, a process, a module collection or a file
    of hidl's names it, or if hidl install would give it again.
    """
    import sys

    from hidl_cli.commands.render import emit_json, printable, progress, say
    from hidl_cli.errors import ExitCode
    from hidl_cli.launch.placement import longest_job
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.pruning import Pruning

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
            say(printable(f"{item.path} stays: {kept}"))
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
        say(printable(f"not removed: {line}"))
    if failed:
        raise typer.Exit(ExitCode.MISSING_PRECONDITION)


def _show(items: list[PruneItem], root: Path) -> None:
    from datetime import datetime

    from hidl_cli.commands.render import show_table

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
