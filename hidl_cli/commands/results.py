"""``hidl results``: list, compare and export results of runs; ``hidl report``: render runs as an HTML page."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hidl_cli.commands.arguments import (
    JsonOption,
    complete_runs,
    complete_runs_and_workloads,
    complete_sites,
    complete_stacks,
    complete_workloads,
    moment,
)
from hidl_cli.commands.completion import complete_metrics
from hidl_cli.commands.render import emit_json, say, show_result, show_results, show_table, stderr, stdout, write
from hidl_cli.errors import ExitCode, HidlError, MissingPrecondition, UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from hidl_cli.analysis.changes import Comparison, LevelChange, MetricDifference, MetricHistory
    from hidl_cli.analysis.samples import Measure, Sample
    from hidl_cli.store.index import Indexed, Progress
    from hidl_cli.store.store import Filters, Store
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hidl_cli.report.model import LoadedRun
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hidl_cli.commands.arguments import RunArgument

if TYPE_CHECKING:
    from hidl_cli.record import Run


app = typer.Typer(no_args_is_help=True, help="List, compare and export results of runs.")

#: Maximum time in seconds to wait for another command that is writing the index.
_MAX_WAIT = 15.0


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
HostOption = Annotated[str | None, typer.Option(help="Only steps that used this host.")]
SinceOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only runs newer than a date, a time, or an age such as 12h, 30d or 2w."),
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
        int, typer.Option("--limit", "--number", "-n", min=1, help="Maximum number of runs, newest first.")
    ] = 20,
    json: JsonOption = False,
) -> None:
    """List judged runs with a metric and the verdict. The index of results is updated first."""
    from hidl_cli.store.store import Filters, result_document

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
            help="Run id, or its start or end (default: the last run).",
            autocompletion=complete_runs,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the origin and all metrics of a judged run, even if its directory is gone."""
    from hidl_cli.runs.metrics import energy_of
    from hidl_cli.store.references import published_figures
    from hidl_cli.store.store import result_document

    store = open_store()
    document = result_document(store, store.find(run))
    document["published"] = published_figures(
        document["workload"], document["parameters"], is_study=document["efficiency"] is not None
    )
    document["energy"] = energy_of(Path(document["directory"]))
    if json:
        emit_json("hidl.result/1", **document)
    else:
        show_result(document)


@app.command()
def export(
    *,
    form: Annotated[
        _Format | None,
        typer.Option("--format", help="Format (default: the suffix of --output, or json).", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: stdout).", dir_okay=False)
    ] = None,
    workload: WorkloadOption = None,
    site: SiteOption = None,
    stack: StackOption = None,
    since: SinceOption = None,
    metric: MetricOption = None,
    series: SeriesOption = None,
    host: HostOption = None,
) -> None:
    """Export all samples for other programs, one per row, oldest run first."""
    from hidl_cli.store.store import Filters
    from hidl_cli.store.store import export as write

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
        typer.Option(help="Directory of run directories (default: yours, and those indexed before)."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Rebuild the index from the run directories, and drop runs whose directories are gone."""
    from hidl_cli.runs.history import refresh
    from hidl_cli.store.index import reindex as rebuild
    from hidl_cli.store.store import Store

    store = Store(on_wait=say)
    with _progress() as tell:
        indexed = rebuild(store, directory or [], judge=refresh, on_progress=tell)
    _tell(indexed)
    runs, samples = store.count()
    if json:
        aside = str(indexed.aside) if indexed.aside else None
        counts = {"runs": runs, "samples": samples, "gone": indexed.gone, "foreign": indexed.foreign}
        emit_json("hidl.reindex/1", file=str(store.file), **counts, aside=aside)
    else:
        stdout().print(f"{_count(runs, 'run')} with {_count(samples, 'sample')} in {store.file}", markup=False)


def _format_of(output: Path | None) -> _Format:
    """Return the format that the file's suffix implies."""

    if output is None:
        return _Format.JSON
    try:
        return _Format(output.suffix.removeprefix("."))
    except ValueError:
        raise UsageError(f"output file {output}: unknown format", hint="use --format json, csv or parquet") from None


def _since(text: str | None) -> datetime | None:
    return None if text is None else moment(text)


def open_store() -> Store:
    """Open and update the results store; if the update fails, warn and return the store as it is."""
    from hidl_cli.runs.history import refresh
    from hidl_cli.store.index import update
    from hidl_cli.store.store import Store

    store = Store(on_wait=say, at_most=_MAX_WAIT)
    try:
        with _progress() as tell:
            _tell(update(store, judge=refresh, on_progress=tell))
    except MissingPrecondition:  # nothing can be shown
        raise
    except HidlError as error:
        say(f"new results are not shown: {error.message}", style="yellow")
        if error.hint:
            say(f"next: {error.hint}")
    return store


def _tell(indexed: Indexed) -> None:
    """Report why runs are missing from the index of results."""

    if indexed.aside:
        say(f"the existing index was unusable and has been moved to {indexed.aside}", style="yellow")
    if indexed.unjudged:
        say(f"runs that have ended but have no verdict yet are not shown: {indexed.unjudged}", style="yellow")
    for directory in indexed.unlistable:
        say(f"cannot list {directory}: its runs are shown as last indexed", style="yellow")
    if indexed.gone:
        say(f"{_count(indexed.gone, 'run')} removed from the index, because the directories are gone")
    if indexed.unreadable:
        say(f"cannot read {_count(indexed.unreadable, 'run directory', 'run directories')}", style="yellow")
    if indexed.foreign:
        verb = "is" if indexed.foreign == 1 else "are"
        directories = _count(indexed.foreign, "run directory", "run directories")
        say(f"{directories} {verb} left out, because another version of hidl wrote them or they are damaged")


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show a progress bar if there is much to read; without a terminal, print a line per thousand directories."""

    if not stderr().is_terminal:
        yield lambda done, total: say(f"{done} of {total} run directories read") if done % 1000 == 0 else None
        return
    from rich.progress import Progress

    with Progress(console=stderr(), transient=True) as progress:
        task = progress.add_task("reading run directories", total=None, visible=False)
        yield lambda done, total: progress.update(task, completed=done, total=total, visible=total > 100)


# ``hidl results compare`` and ``hidl results history``.


_NAMES = "run id (or its start or end), series (or its start), or workload"


@app.command()
def compare(
    a: Annotated[
        str,
        typer.Argument(metavar="A", help=f"Reference: {_NAMES}.", autocompletion=complete_runs_and_workloads),
    ],
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="[B]",
            help="Results to compare with A (default: A itself, split by time).",
            autocompletion=complete_runs_and_workloads,
        ),
    ] = None,
    *,
    before: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only runs of A planned before this time (default: --since).")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only runs of B planned since this time (default: --before).")
    ] = None,
    metric: MetricOption = None,
    tolerance: Annotated[
        float, typer.Option(min=0, max=100, metavar="PERCENT", help="Smallest regression worth reporting.")
    ] = 3.0,
    json: JsonOption = False,
) -> None:
    """Compare B with A, metric by metric.

    The exit code is 10 if B is worse, or differs in a metric without a direction, and 11 if the result is inconclusive.
    """
    from hidl_cli.analysis import changes as comparing

    if b is None and before is None and since is None:
        raise UsageError("nothing to compare A with", hint="pass B as well, or split A with --since TIME")
    store = open_store()
    upper, lower = (moment(text) if text else None for text in (before or since, since or before))
    left = _samples(store, a, metric, before=upper)
    right = _samples(store, b or a, metric, since=lower)
    for name, samples in ((a, left), (b or a, right)):
        if not samples:
            raise UsageError(f"{name} has no matching samples", hint="to list the results, run: hidl results list")
    try:
        comparison = comparing.compare(left, right, tolerance=tolerance / 100)
    except ValueError as error:
        raise UsageError(f"{a} and {b or a} cannot be compared: {error}") from error
    if json:
        emit_json("hidl.comparison/1", a=a, b=b or a, **comparison.to_json())
    else:
        show_comparison(comparison)
    exit_by(comparison)


@app.command()
def history(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SERIES|WORKLOAD",
            help="Series (or its start), or workload.",
            autocompletion=complete_workloads,
        ),
    ],
    *,
    metric: MetricOption = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only runs planned since this time.")] = None,
    json: JsonOption = False,
) -> None:
    """Show each metric over time: the runs at which it changed, by how much, and what else changed there."""
    from hidl_cli.analysis.changes import histories

    samples = _samples(open_store(), name, metric, since=moment(since) if since else None)
    if not samples:
        raise UsageError(f"{name} has no matching samples", hint="to list the results, run: hidl results list")
    found = histories(samples, metric=metric)
    if json:
        emit_json("hidl.history/1", histories=[_history_document(one) for one in found])
    else:
        _show_histories(found)


def _samples(
    store: Store, name: str, metric: str | None, *, before: datetime | None = None, since: datetime | None = None
) -> list[Sample]:
    """Return the samples of a workload, series or run in a time range."""
    from hidl_cli.analysis.samples import instant

    filters = replace(_named(store, name), metric=metric, since=since, until=before)
    found = store.samples(filters)
    return [sample for sample in found if before is None or instant(sample.created) < before]


def _named(store: Store, name: str) -> Filters:
    """Return filters for the workload, series or run with this name."""
    from hidl_cli.store.store import Filters

    series = store.series()
    if any(one.workload == name for one in series):
        return Filters(workload=name, of_ranks=False)
    fitting = {one.series for one in series if one.series.startswith(name)}
    if len(fitting) > 1:
        raise UsageError(f"{len(fitting)} series match {name!r}: {', '.join(sorted(fitting)[:5])}")
    if fitting:
        return Filters(series=fitting.pop(), of_ranks=False)
    return Filters(run=store.find(name).run, of_ranks=False)


def _history_document(history: MetricHistory) -> dict[str, Any]:

    document = asdict(history)
    document["measure"] = document["measure"]._asdict()
    return document


def exit_by(comparison: Comparison) -> None:
    """Exit with the comparison's exit code unless it is 0."""
    codes = {
        "worse": ExitCode.BELOW_TARGET,
        "different": ExitCode.BELOW_TARGET,
        "inconclusive": ExitCode.INCONCLUSIVE,
    }
    if code := codes.get(comparison.outcome):
        raise typer.Exit(code)


def show_comparison(comparison: Comparison) -> None:
    """Print a row for each metric, and the reason for each outcome other than ``same``."""

    show_table([_difference(difference) for difference in comparison.differences])
    for difference in comparison.differences:
        measure = difference.measure
        if difference.outcome != "same":
            at = f"{measure.workload}{measure.which} on {measure.ranks} rank(s)"
            say(f"{difference.outcome}: {measure.metric} of {at}: {difference.reason}")
    sides = comparison.only_in_a, comparison.only_in_b
    for side, measures, others in zip("AB", sides, sides[::-1], strict=True):
        if measures:
            say(f"only in {side}: " + ", ".join(_describe_unshared(measure, others) for measure in measures))


def _describe_unshared(measure: Measure, others: Iterable[Measure]) -> str:
    """Describe a measure that only one side has; name its unit if the sides differ only in the unit."""
    only_unit = measure._replace(unit="") in {other._replace(unit="") for other in others}
    unit = f" in {measure.unit}" if only_unit else ""
    return f"{measure.metric}{unit}{measure.which} on {measure.ranks} rank(s)"


def _difference(difference: MetricDifference) -> dict[str, Any]:
    measure = difference.measure
    return {
        "workload": f"{measure.workload}{measure.which}",
        "nodes": measure.nodes,
        "ranks": measure.ranks,
        "metric": measure.metric,
        "n": f"{difference.count_a}, {difference.count_b} {difference.independent}",
        "A": f"{difference.median_a:.4g}",
        "B": f"{difference.median_b:.4g}",
        "shift": f"{difference.shift:+.1%}",
        "95 % interval": _interval(difference.interval),
        "p": f"{difference.p_holm:.2g}",
        "effect": f"{difference.effect:+.2f} {difference.effect_in_words}",
        "": difference.outcome,
    }


def _begin(series: str) -> str:
    """Return the abbreviated name of a series: its prefix and its first 8 digits."""
    return series[: series.find("-") + 9]


def _interval(interval: Any) -> str:
    return f"{interval.low:+.1%} to {interval.high:+.1%}" if interval else "-"


def _show_histories(histories: list[MetricHistory]) -> None:

    show_table(
        [
            {
                "series": _begin(history.measure.series),
                "workload": history.measure.workload,
                "site": history.site,
                "ranks": history.measure.ranks,
                "metric": history.measure.metric,
                "runs": len(history.values),
                "last": f"{history.values[-1]:.4g} {history.unit}",
                "noise": "-" if history.noise is None else f"{history.noise:.1%}",
                "steps": "-" if history.reason else len(history.steps),
            }
            for history in histories
        ]
    )
    changes = [_change(history, step) for history in histories for step in history.steps]
    if changes:
        show_table(changes)
    for reason in dict.fromkeys(history.reason for history in histories if history.reason):
        say(reason)


def _change(history: MetricHistory, step: LevelChange) -> dict[str, Any]:
    from hidl_cli.analysis.samples import instant

    what = {None: "different", True: "worse", False: "better"}
    return {
        "since": f"{instant(step.created).astimezone():%Y-%m-%d}",
        "run": step.run,
        "series": _begin(history.measure.series),
        "metric": history.measure.metric,
        "change": f"{step.change:+.1%}",
        "95 % interval": _interval(step.interval),
        "": what[step.worse],
        "what changed there": "; ".join(
            f"{one.what}: {one.before or 'none'} -> {one.after or 'none'}" for one in step.circumstances
        )
        or "nothing that was recorded",
    }


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
        str | None,
        typer.Option(metavar="TIME", help="Only runs newer than a date, a time, or an age such as 12h, 30d or 2w."),
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Maximum number of runs, newest first.")] = 200,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|site=S|mpi=M",
            help="Compare curves over message sizes with this run, or with the newest run on a site or MPI library.",
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
    from hidl_cli.report import model
    from hidl_cli.report.build import page_of
    from hidl_cli.report.html import to_html

    if output == "-" and (open_ or json):
        raise UsageError("--output - cannot be combined with --open or --json", hint="use --output report.html")
    names = runs or []
    found = model.select_runs(names, site=site, workload=workload, since=moment(since) if since else None, most=number)
    if not found:
        raise UsageError("no matching runs", hint="to list the runs, run: hidl status")
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
    from hidl_cli.record import find
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
        raise UsageError(f"no runs match --baseline {word}", hint="to list the runs, run: hidl status")
    return found


def _related(read: list[LoadedRun], notes: list[str]) -> list[LoadedRun]:
    """Return earlier runs related to the named runs; without a results store, add a note and return an empty list."""
    from hidl_cli.report.model import related_runs
    from hidl_cli.store.store import Store

    try:
        return related_runs(read, Store())
    except HidlError as error:
        notes.append(f"earlier runs are not included: {error.message}")
        return []


def _written(html: str, output: str) -> Path:
    from hidl_cli.documents import write_output
    from hidl_cli.report.html import is_report

    path = Path(output).absolute()
    try:
        write_output(path, html.encode(), is_report)
    except OSError as error:
        raise HidlError(f"cannot write the report: {error}", hint="write to another file with --output FILE") from error
    return path


def _show(path: Path) -> None:
    """Open the page in the desktop's default application."""
    import shutil

    from hidl_cli import process

    opener = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    if opener is None:
        raise MissingPrecondition("xdg-open not found", hint=f"open {path} in a browser")
    nowhere = Path(os.devnull)
    process.start_detached([opener, path], cwd=path.parent, env=os.environ, stdout=nowhere, stderr=nowhere)


class Form(str, Enum):
    """Forms in which a profile can be exported: tables, a trace or an archive."""

    calls = "calls"
    ranks = "ranks"
    pairs = "pairs"
    trace = "trace"
    otf2 = "otf2"


@app.command()
def profile(
    run: RunArgument = None,
    *,
    step: Annotated[
        int | None, typer.Option(min=1, help="Number of the step (default: the last one of the largest size).")
    ] = None,
    matrix: Annotated[bool, typer.Option("--matrix", help="Show who sent how many bytes to whom.")] = False,
    export: Annotated[
        Form | None,
        typer.Option(
            help="Write a table of calls, ranks or pairs of ranks (CSV, or Parquet if FILE ends in .parquet), a trace "
            "for Perfetto, or an OTF2 archive."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for --export; for OTF2, a new directory.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the profile of a run: calls of MPI, waiting time, slow ranks and the causes of lost efficiency."""
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.profile import describe_traffic, export_profile, find_step, read_profile, step_document
    from hidl_cli.record import find

    found = find(run)
    plan = plan_of(found)
    document = read_profile(found, plan)
    chosen = find_step(found, document, step)
    if (export is None) is not (output is None):
        raise UsageError(
            "--export and --output must be used together", hint="for example, use --export trace --output trace.json"
        )
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
    """Print the main results of a run's profile, or nothing if the run was not profiled."""
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
    say(f"for details, run: hidl results profile {run.id}")
