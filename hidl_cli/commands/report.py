"""``hidl report``: what runs yielded, as one page for a browser."""

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
        typer.Argument(metavar="[RUN]...", help="Runs (default: all that fit).", autocompletion=complete_runs),
    ] = None,
    *,
    site: Annotated[str | None, typer.Option(help="Only runs on this site.", autocompletion=complete_sites)] = None,
    workload: Annotated[
        str | None, typer.Option(help="Only runs of this workload.", autocompletion=complete_workloads)
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only runs planned since: a date, a time, or 12h, 30d, 2w ago.")
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="At most this many, the newest.")] = 200,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|site=S|mpi=M",
            help="Hold curves by message size against this run, or the newest at another site or on another MPI.",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The page; - is stdout.")
    ] = "report.html",
    open_: Annotated[bool, typer.Option("--open", help="Show it in the desktop's browser.")] = False,
    json: JsonOption = False,
) -> None:
    """Write one HTML page: verdicts, scaling, history, message sizes, slow nodes and provenance."""
    from datetime import datetime, timezone

    from hidl_cli import __version__
    from hidl_cli.analysis.changes import find_changes
    from hidl_cli.commands.render import emit_json, say, write
    from hidl_cli.errors import UsageError
    from hidl_cli.report import model
    from hidl_cli.report.build import page_of
    from hidl_cli.report.html import to_html

    if output == "-" and (open_ or json):
        raise UsageError("a page that goes to stdout leaves no room for --open or --json", hint="--output report.html")
    names = runs or []
    found = model.select_runs(names, site=site, workload=workload, since=moment(since) if since else None, most=number)
    if not found:
        raise UsageError("no run fits", hint="hidl status lists the runs that this hidl reads")
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
    """The run that is named, or those of a site (``site=S``) or on an MPI library (``mpi=M``: its name or family)."""
    from hidl_cli.errors import UsageError
    from hidl_cli.record.run import find
    from hidl_cli.report import model
    from hidl_cli.report.model import load

    kind, equals, name = word.partition("=")
    if not equals:
        return load(find(word))
    if kind not in ("site", "mpi") or not name:
        raise UsageError(f"--baseline {word!r} is not understood", hint="a run, site=NAME or mpi=NAME")
    read, _ = model.load_runs(model.select_runs((), site=name if kind == "site" else None, most=number))
    found = [run for run in read if kind == "site" or name in (run.plan.mpi.name, run.plan.mpi.family)]
    if not found:
        raise UsageError(f"no run fits --baseline {word}", hint="hidl status lists the runs that this hidl reads")
    return found


def _related(read: list[LoadedRun], notes: list[str]) -> list[LoadedRun]:
    """The history of runs that were chosen by name; without a store there is none, which the page then says."""
    from hidl_cli.errors import HidlError
    from hidl_cli.report.model import related_runs
    from hidl_cli.store.store import Store

    try:
        return related_runs(read, Store())
    except HidlError as error:
        notes.append(f"earlier runs are not taken into account: {error.message}")
        return []


def _written(html: str, output: str) -> Path:
    from pathlib import Path

    from hidl_cli.documents import write_text
    from hidl_cli.errors import HidlError

    path = Path(output).absolute()
    try:
        write_text(path, html)
    except OSError as error:
        raise HidlError(f"the report cannot be written: {error}", hint="--output names another place") from error
    return path


def _show(path: Path) -> None:
    """Open the page with what this desktop opens files with."""
    import os
    import shutil
    import sys
    from pathlib import Path

    from hidl_cli import process
    from hidl_cli.errors import MissingPrecondition

    opener = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    if opener is None:
        raise MissingPrecondition("this machine has no xdg-open to show a page with", hint=f"open {path} in a browser")
    nowhere = Path(os.devnull)
    process.start_detached([opener, path], cwd=path.parent, env=os.environ, stdout=nowhere, stderr=nowhere)
