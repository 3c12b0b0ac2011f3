"""``hidl results``: what runs yielded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from hidl_cli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from hidl_cli.analysis.changes import Change, Comparison, Difference, History
    from hidl_cli.analysis.samples import Measure, Sample
    from hidl_cli.store.indexing import Indexed, Progress
    from hidl_cli.store.store import Filters, Store


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
    from hidl_cli.commands.render import emit_json, show_results
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
            help="A run's id, or its first or last characters (default: the last).",
            autocompletion=complete_runs,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show one judged run: where it comes from, and all its metrics. Its directory need not be there any more."""
    from hidl_cli.commands.render import emit_json, show_result
    from hidl_cli.store.store import result_document

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
    from hidl_cli.store.store import Filters

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


# ``hidl results compare`` and ``hidl results history``: did something become slower, and when?


_NAMES = "a run's id (or its first or last characters), a series (or its first characters), or a workload"


@app.command()
def compare(
    a: Annotated[
        str,
        typer.Argument(metavar="A", help=f"What it was before: {_NAMES}.", autocompletion=complete_runs_and_workloads),
    ],
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="[B]",
            help="What it is now (default: A, split by time).",
            autocompletion=complete_runs_and_workloads,
        ),
    ] = None,
    *,
    before: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of A, what was planned before (default: --since).")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of B, what was planned since (default: --before).")
    ] = None,
    metric: MetricOption = None,
    tolerance: Annotated[
        float, typer.Option(min=0, max=100, metavar="PERCENT", help="Ignore a smaller worsening.")
    ] = 3.0,
    json: JsonOption = False,
) -> None:
    """Compare B with A, metric by metric.

    Exit code 10 if B is worse, or differs in a metric without a direction; 11 if inconclusive.
    """
    from hidl_cli.analysis import changes as comparing
    from hidl_cli.commands.render import emit_json

    if b is None and before is None and since is None:
        raise UsageError("there is only one thing to compare", hint="name a second one, or split by --since TIME")
    store = open_store()
    upper, lower = (moment(text) if text else None for text in (before or since, since or before))
    left = _samples(store, a, metric, before=upper)
    right = _samples(store, b or a, metric, since=lower)
    for name, samples in ((a, left), (b or a, right)):
        if not samples:
            raise UsageError(f"{name} has no samples there", hint="hidl results list")
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
            help="A series (its begin), or a workload.",
            autocompletion=complete_workloads,
        ),
    ],
    *,
    metric: MetricOption = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only runs planned since.")] = None,
    json: JsonOption = False,
) -> None:
    """Show each metric over time: the runs at which it changed, by how much, and what else changed there."""
    from hidl_cli.analysis.changes import histories
    from hidl_cli.commands.render import emit_json

    samples = _samples(open_store(), name, metric, since=moment(since) if since else None)
    if not samples:
        raise UsageError(f"{name} has no samples there", hint="hidl results list")
    found = histories(samples, metric=metric)
    if json:
        emit_json("hidl.history/1", histories=[_history_document(one) for one in found])
    else:
        _show_histories(found)


def _samples(
    store: Store, name: str, metric: str | None, *, before: datetime | None = None, since: datetime | None = None
) -> list[Sample]:
    """The steps' samples of what is called so, planned in that time."""
    from hidl_cli.analysis.samples import instant

    filters = replace(_named(store, name), metric=metric, since=since, until=before)
    found = store.samples(filters)
    return [sample for sample in found if before is None or instant(sample.created) < before]


def _named(store: Store, name: str) -> Filters:
    """What is called so: a workload, a series or a run."""
    from hidl_cli.store.store import Filters

    series = store.series()
    if any(one.workload == name for one in series):
        return Filters(workload=name, of_ranks=False)
    fitting = {one.series for one in series if one.series.startswith(name)}
    if len(fitting) > 1:
        raise UsageError(f"{len(fitting)} series begin with {name!r}: {', '.join(sorted(fitting)[:5])}")
    if fitting:
        return Filters(series=fitting.pop(), of_ranks=False)
    return Filters(run=store.find(name).run, of_ranks=False)


def _history_document(history: History) -> dict[str, Any]:
    from dataclasses import asdict

    document = asdict(history)
    document["measure"] = document["measure"]._asdict()
    return document


def exit_by(comparison: Comparison) -> None:
    """Exit with the code of the outcome, unless it is 0."""
    codes = {
        "worse": ExitCode.BELOW_TARGET,
        "different": ExitCode.BELOW_TARGET,
        "inconclusive": ExitCode.INCONCLUSIVE,
    }
    if code := codes.get(comparison.outcome):
        raise typer.Exit(code)


def show_comparison(comparison: Comparison) -> None:
    """Print a row for each metric, and why those that are not the same are not."""
    from hidl_cli.commands.render import say, show_table

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
    """Return a measure of one side in words, with its unit if that is all that differs from one of the other side."""
    only_unit = measure._replace(unit="") in {other._replace(unit="") for other in others}
    unit = f" in {measure.unit}" if only_unit else ""
    return f"{measure.metric}{unit}{measure.which} on {measure.ranks} rank(s)"


def _difference(difference: Difference) -> dict[str, Any]:
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
    """Return the begin of a series: its prefix and the first 8 digits."""
    return series[: series.find("-") + 9]


def _interval(interval: Any) -> str:
    return f"{interval.low:+.1%} to {interval.high:+.1%}" if interval else "-"


def _show_histories(histories: list[History]) -> None:
    from hidl_cli.commands.render import say, show_table

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


def _change(history: History, step: Change) -> dict[str, Any]:
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
