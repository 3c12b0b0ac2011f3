"""``hidl results``: what runs yielded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import (
    JsonOption,
    complete_runs,
    complete_sites,
    complete_stacks,
    complete_workloads,
    moment,
)
from hidl_cli.commands.completers import complete_metrics

if TYPE_CHECKING:
    from datetime import datetime

    from hidl_cli.store.indexing import Indexed, Progress
    from hidl_cli.store.store import Store

app = typer.Typer(no_args_is_help=True, help="Results of runs: list, compare, export.")

#: Seconds that a command which only looks waits for those that write.
_AT_MOST = 15.0


@app.callback()
def _results() -> None:
    pass


class _Format(str, Enum):
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


WorkloadOption = Annotated[
    str | None, typer.Option(help="Only runs of this workload.", autocompletion=complete_workloads)
]
SiteOption = Annotated[str | None, typer.Option(help="Only runs on this site.", autocompletion=complete_sites)]
StackOption = Annotated[str | None, typer.Option(help="Only runs on this stack.", autocompletion=complete_stacks)]
MetricOption = Annotated[str | None, typer.Option(help="Only this metric.", autocompletion=complete_metrics)]
SeriesOption = Annotated[str | None, typer.Option(help="Only this series (see hidl results show --json).")]
HostOption = Annotated[str | None, typer.Option(help="Only steps that ran on this host, maybe among others.")]
SinceOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only runs planned since: a date, a time, or 12h, 30d, 2w ago.")
]


@app.command("list")
def list_(
    *,
    workload: WorkloadOption = None,
    site: SiteOption = None,
    stack: StackOption = None,
    since: SinceOption = None,
    metric: MetricOption = None,
    host: HostOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "--number", "-n", min=1, help="At most so many runs, the newest first.")
    ] = 20,
    json: JsonOption = False,
) -> None:
    """List the runs that were judged, with a metric and the verdict. The index is brought up to date before."""
    from hidl_cli.commands.render import emit_json
    from hidl_cli.commands.tables import show_results
    from hidl_cli.store.filters import Filters
    from hidl_cli.store.listing import result_document

    filters = Filters(workload=workload, site=site, stack=stack, metric=metric, host=host, since=_since(since))
    store = open_store()
    found = [result_document(store, run, metric=metric) for run in store.runs(filters, limit=limit)]
    if json:
        emit_json("hidl.results/1", results=found)
    else:
        show_results(found)


@app.command()
def show(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run's id, or its first or last characters (default: the last).",
            autocompletion=complete_runs,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show one judged run: where it comes from, and all its metrics. Its directory need not be there any more."""
    from hidl_cli.commands.render import emit_json
    from hidl_cli.commands.tables import show_result
    from hidl_cli.store.listing import result_document

    store = open_store()
    document = result_document(store, store.find(run))
    if json:
        emit_json("hidl.result/1", **document)
    else:
        show_result(document)


@app.command()
def export(
    *,
    form: Annotated[
        _Format | None, typer.Option("--format", help="Default: what --output ends with, or json.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file (default: stdout).", dir_okay=False)
    ] = None,
    workload: WorkloadOption = None,
    site: SiteOption = None,
    stack: StackOption = None,
    since: SinceOption = None,
    metric: MetricOption = None,
    series: SeriesOption = None,
    host: HostOption = None,
) -> None:
    """Write all samples, one a row, for other programs: those of the oldest run first."""
    from hidl_cli.commands.render import say
    from hidl_cli.store.export import export as write
    from hidl_cli.store.filters import Filters

    chosen = form or _format_of(output)
    filters = Filters(
        workload=workload, site=site, stack=stack, metric=metric, series=series, host=host, since=_since(since)
    )
    count = write(open_store().samples(filters), chosen.value, output)
    if output is not None:
        say(f"{_count(count, 'sample')} in {output}")


@app.command()
def reindex(
    directory: Annotated[
        list[Path] | None,
        typer.Option(help="A directory that holds run directories (default: yours, and those indexed before)."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Rebuild the index from the run directories, and forget those that are gone."""
    from hidl_cli.commands.render import emit_json, say, stdout
    from hidl_cli.runs.history import refresh
    from hidl_cli.store.indexing import reindex as rebuild
    from hidl_cli.store.store import Store

    store = Store(on_wait=say)
    with _progress() as tell:
        indexed = rebuild(store, directory or [], judge=refresh, tell=tell)
    _tell(indexed)
    runs, samples = store.count()
    if json:
        aside = str(indexed.aside) if indexed.aside else None
        counts = {"runs": runs, "samples": samples, "gone": indexed.gone, "foreign": indexed.foreign}
        emit_json("hidl.reindex/1", file=str(store.file), **counts, aside=aside)
    else:
        stdout().print(f"{_count(runs, 'run')} with {_count(samples, 'sample')} in {store.file}", markup=False)


def _format_of(output: Path | None) -> _Format:
    """What the file's name ends with."""
    from hidl_cli.errors import UsageError

    if output is None:
        return _Format.JSON
    try:
        return _Format(output.suffix.removeprefix("."))
    except ValueError:
        raise UsageError(f"{output} does not end with a format's name", hint="--format json, csv or parquet") from None


def _since(text: str | None) -> datetime | None:
    return None if text is None else moment(text)


def open_store() -> Store:
    """The store, brought up to date; where that cannot be, what there is will do, and it is said."""
    from hidl_cli.commands.render import say
    from hidl_cli.errors import HidlError, MissingPrecondition
    from hidl_cli.runs.history import refresh
    from hidl_cli.store.indexing import update
    from hidl_cli.store.store import Store

    store = Store(on_wait=say, at_most=_AT_MOST)
    try:
        with _progress() as tell:
            _tell(update(store, judge=refresh, tell=tell))
    except MissingPrecondition:  # there is nothing that can be shown
        raise
    except HidlError as error:
        say(f"what is new is not shown: {error.message}", style="yellow")
        if error.hint:
            say(f"next: {error.hint}")
    return store


def _tell(indexed: Indexed) -> None:
    """What a user should know of directories that are not among the results."""
    from hidl_cli.commands.render import say

    if indexed.aside:
        say(f"what lay there was no index that hidl can use; it is now {indexed.aside}", style="yellow")
    if indexed.unjudged:
        say(f"runs that ended meanwhile are not shown: {indexed.unjudged}", style="yellow")
    for place in indexed.unlistable:
        say(f"{place} cannot be listed: its runs stay as they were indexed", style="yellow")
    if indexed.gone:
        say(f"{_count(indexed.gone, 'run')} left the index: the directories are gone")
    if indexed.unreadable:
        say(f"{_count(indexed.unreadable, 'run directory', 'run directories')} cannot be read now", style="yellow")
    if indexed.foreign:
        verb = "is" if indexed.foreign == 1 else "are"
        directories = _count(indexed.foreign, "run directory", "run directories")
        say(f"{directories} {verb} left out: written by another version of hidl, or damaged")


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal, where there is much to read; elsewhere a line every thousand directories."""
    from hidl_cli.commands.render import say, stderr

    if not stderr().is_terminal:
        yield lambda done, total: say(f"{done} of {total} run directories read") if done % 1000 == 0 else None
        return
    from rich.progress import Progress

    with Progress(console=stderr(), transient=True) as progress:
        task = progress.add_task("reading run directories", total=None, visible=False)
        yield lambda done, total: progress.update(task, completed=done, total=total, visible=total > 100)
