"""``hidl report``: render runs as an HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, complete_runs, complete_sites, complete_workloads, moment

if TYPE_CHECKING:
    from pathlib import Path

    from hidl_cli.report.model import LoadedRun


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="Runs to show (default: all that match).", autocompletion=complete_runs
        ),
    ] = None,
    *,
    site: Annotated[str | None, typer.Option(help="Only runs on this site.", autocompletion=complete_sites)] = None,
    workload: Annotated[
        str | None, typer.Option(help="Only runs of this workload.", autocompletion=complete_workloads)
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only runs since a date, a time, or an age such as 12h, 30d, 2w.")
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Maximum number of runs, newest first.")] = 200,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|site=S|mpi=M",
            help="Compare curves over message sizes with this run, or the newest one on a site or an MPI library.",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="File to write; - is stdout.")
    ] = "report.html",
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    json: JsonOption = False,
) -> None:
    """Write an HTML page with verdicts, scaling, history, message sizes, slow nodes and provenance."""
    from datetime import datetime, timezone

    from hidl_cli import __version__
    from hidl_cli.analysis.changes import find_changes
    from hidl_cli.commands.render import emit_json, say, write
    from hidl_cli.errors import UsageError
    from hidl_cli.report import model
    from hidl_cli.report.build import page_of
    from hidl_cli.report.html import to_html

    if output == "-" and (open_ or json):
        raise UsageError("--output - cannot be combined with --open or --json", hint="use --output report.html")
    names = runs or []
    found = model.select_runs(names, site=site, workload=workload, since=moment(since) if since else None, most=number)
    if not found:
        raise UsageError("no matching runs", hint="list the runs: hidl status")
    read, notes = model.load_runs(found)
    related = _related(read, notes) if names else []
    page = page_of(
        read,
        detect=find_changes,
        generated=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        hidl=__version__,
        selection=model.format_selection(names, site, workload, since),
        related=related,
        baseline=_baseline(baseline, number) if baseline else None,
        notes=notes,
    )
    html = to_html(page)
    if output == "-":
        write(html)
        return
    path = _written(html, output)
    tally = {outcome.value: count for outcome, count in page.tally().items()}
    if json:
        emit_json("hidl.report/1", file=str(path), bytes=path.stat().st_size, runs=len(page.runs), standings=tally)
    else:
        say(f"report: {path} ({len(page.runs)} runs)")
    if open_:
        _show(path)


def _baseline(word: str, number: int) -> LoadedRun | list[LoadedRun]:
    """Return the runs to compare with: the named run, or those of a site (``site=S``) or an MPI library (``mpi=M``)."""
    from hidl_cli.errors import UsageError
    from hidl_cli.record.run import find
    from hidl_cli.report import model
    from hidl_cli.report.model import load

    kind, equals, name = word.partition("=")
    if not equals:
        return load(find(word))
    if kind not in ("site", "mpi") or not name:
        raise UsageError(f"invalid --baseline {word!r}: expected a run, site=NAME or mpi=NAME")
    read, _ = model.load_runs(model.select_runs((), site=name if kind == "site" else None, most=number))
    found = [run for run in read if kind == "site" or name in (run.plan.mpi.name, run.plan.mpi.family)]
    if not found:
        raise UsageError(f"no runs match --baseline {word}", hint="list the runs: hidl status")
    return found


def _related(read: list[LoadedRun], notes: list[str]) -> list[LoadedRun]:
    """Return earlier runs related to the named runs; without a results store, add a note and return an empty list."""
    from hidl_cli.errors import HidlError
    from hidl_cli.report.model import related_runs
    from hidl_cli.store.store import Store

    try:
        return related_runs(read, Store())
    except HidlError as error:
        notes.append(f"earlier runs are not included: {error.message}")
        return []


def _written(html: str, output: str) -> Path:
    from pathlib import Path

    from hidl_cli.documents import write_text
    from hidl_cli.errors import HidlError

    path = Path(output).absolute()
    try:
        write_text(path, html)
    except OSError as error:
        raise HidlError(f"cannot write the report: {error}", hint="write to another file: --output FILE") from error
    return path


def _show(path: Path) -> None:
    """Open the page in the desktop's default application."""
    import os
    import shutil
    import sys
    from pathlib import Path

    from hidl_cli import process
    from hidl_cli.errors import MissingPrecondition

    opener = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    if opener is None:
        raise MissingPrecondition("xdg-open not found", hint=f"open {path} in a browser")
    nowhere = Path(os.devnull)
    process.start_detached([opener, path], cwd=path.parent, env=os.environ, stdout=nowhere, stderr=nowhere)
