"""Follow a run on the terminal and report its verdict."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer

from hidl_cli.commands.render import emit_json, runs_table, say, show_error, show_runs, stderr, stdout
from hidl_cli.diagnoses import read_warnings
from hidl_cli.errors import ExitCode, HidlError, JobFailed, MetricMissing, Terminated
from hidl_cli.plan.launch_plan import Plan, create_run, plan_of
from hidl_cli.plan.parameters import format_parameters
from hidl_cli.record import Run, State, Status
from hidl_cli.redaction import redact_variable, remember_log, shown_output
from hidl_cli.runs.conclude import Conclusion, conclude, describe_company
from hidl_cli.runs.follow import end, ends_with_the_terminal, follow, scheduler_of
from hidl_cli.runs.history import run_document
from hidl_cli.schedulers.decision import read_status
from hidl_cli.tuning.judge import COMPARED, compared_variables

if TYPE_CHECKING:
    from hidl_cli.analysis.nodes import Field

#: Function to call for an unfinished run when the user interrupts.
Interrupted = Callable[[Run, KeyboardInterrupt], None]
_LEGIBLE = 2.0  # confidence intervals wider than this, in the logarithm of the efficiency, are not shown


@contextmanager
def started(plan: Plan, script: str) -> Iterator[Run]:
    """Submit a run that belongs to this command, and cancel it if the command is interrupted before the run ends."""
    run = create_run(plan, script, tell=say)
    try:
        scheduler_of(plan).submit(run)
        yield run
    except KeyboardInterrupt as interrupt:
        if not read_status(run).state.is_final:
            _end_own(run, interrupt)
        raise


def follow_and_judge(run: Run, plan: Plan, *, json: bool, own: bool = True) -> None:
    """Follow ``run`` to its end, print its results and verdict, and exit with the verdict's exit code unless it is 0.

    ``own`` means that the run belongs to this command (see ``started``). An interrupt cancels only such a run.
    """
    try:
        conclusion = follow_to_verdict(run, plan, own=own)
    except (JobFailed, MetricMissing):
        if json:
            emit_json("hidl.run/1", **run_document(run))
        raise
    if json:
        emit_json("hidl.run/1", **run_document(run))
    else:
        from hidl_cli.commands.results import show_profile  # loads all commands about results

        show(run, conclusion)
        show_profile(run)
    if conclusion.exit_code:
        raise typer.Exit(conclusion.exit_code)


def follow_to_verdict(run: Run, plan: Plan, *, own: bool = True) -> Conclusion:
    """Follow ``run`` to its end and determine its verdict; see ``follow_and_judge`` for ``own`` and errors."""
    with _Display(run, plan) as display:
        (status,) = follow([run], tell=display.update, interrupted=None if own else leave)
    if own and status.state is State.LOST:
        end(run, State.LOST)  # ends processes that may still exist
    conclusion = conclude(run, plan, status)
    if company := describe_company(run, plan):
        say(f"warning: {company}")
    for found in read_warnings(run):
        place = f" on {found.where}" if found.where else ""
        say(f"warning: {found.title}{place} ({found.rule}): {found.seen}\n  fix: {found.fix}")
    return conclusion


def leave(run: Run, _: KeyboardInterrupt) -> None:
    """Stop following a run that was started earlier and continues to run."""
    say(f"run {run.id} continues; follow it with hidl resume {run.id}, or end it with hidl cancel {run.id}")


def follow_all(runs: Sequence[Run], *, json: bool) -> None:
    """Follow several runs until they all end, print their verdicts, and exit with the most severe exit code."""
    gravest = follow_and_judge_each(runs)
    if json:
        emit_json("hidl.runs/1", runs=[run_document(run) for run in runs])
    else:
        show_runs([run_document(run) for run in runs])
    if gravest:
        raise typer.Exit(gravest)


def follow_and_judge_each(
    runs: Sequence[Run], interrupted: Callable[[Run, KeyboardInterrupt], None] | None = leave
) -> int:
    """Follow several runs until they all end, determine their verdicts, and return the most severe exit code.

    Args:
        runs: The runs.
        interrupted: Function that is called for each unfinished run when the user interrupts.
    """
    lines = _StateLines()
    codes = {}
    for run, status in zip(runs, follow(runs, tell=lines.update, interrupted=interrupted), strict=True):
        try:
            codes[run.id] = conclude(run, plan_of(run), status).exit_code
        except HidlError as error:
            codes[run.id] = error.exit_code
            show_error(error)
    return min((code for code in codes.values() if code), default=ExitCode.OK)


def continues_after(run: Run, interrupt: KeyboardInterrupt) -> bool:
    """Return whether the run continues after an interrupt.

    This is the case if its job is in a queue and the terminal or the host, rather than the user, ends this process.
    """
    return isinstance(interrupt, Terminated) and not ends_with_the_terminal(run)


def _end_own(run: Run, interrupt: KeyboardInterrupt) -> None:
    """Cancel the run when the user interrupts the command that started it."""
    if continues_after(run, interrupt):
        leave(run, interrupt)
        return
    say(f"cancelling run {run.id} (use --no-wait and hidl resume to keep a run going without this command)")
    end(run, State.INTERRUPTED)


def show(run: Run, conclusion: Conclusion) -> None:
    """Print the metrics, the scaling table and the verdict."""
    from hidl_cli.analysis.ranking import overheads
    from hidl_cli.report.tables import overhead_table

    out = stdout()
    if conclusion.study is not None:
        from hidl_cli.report.plots import draw_scaling
        from hidl_cli.report.tables import scaling_table

        out.print(scaling_table(conclusion.study))
        picture = run.directory / "scaling.png"
        draw_scaling(conclusion.study, picture)
        say(f"picture: {picture}")
        return
    suites = overheads(conclusion.steps)
    if conclusion.fields:
        _show_pairs(run, conclusion.fields)
    elif suites:
        for each in suites:
            out.print(overhead_table(each))
    elif conclusion.ranking is not None:
        from hidl_cli.report.tables import ranking_table

        out.print(ranking_table(conclusion.ranking))
    else:
        _show_metrics(conclusion.steps)
    compared = conclusion.fields or any(step.get("parameters") for step in conclusion.steps)
    if conclusion.verdict is None and compared and not suites:
        out.print(conclusion.reason, markup=False)
    if conclusion.verdict is not None:
        style = {"pass": "bold green", "fail": "bold red"}.get(conclusion.verdict, "bold yellow")
        out.print(conclusion.verdict, style=style, end="")
        out.print(f": {conclusion.reason}", markup=False)
    if conclusion.hint:
        say(f"next: {conclusion.hint}")


def _show_metrics(steps: list[dict[str, Any]]) -> None:
    from rich.table import Table

    if not any(step["metrics"] for step in steps):
        return
    varied = list(steps[0].get("parameters", {}))
    table = Table(*varied, "metric", "value", "unit", "ranks", "repetition", box=None, header_style="bold")
    for step in steps:
        point = [redact_variable(name, str(step["parameters"][name])) for name in varied]
        for name, metric in step["metrics"].items():
            value = metric["value"]
            text = f"{value:.6g}" if isinstance(value, float) else str(value)[:16]
            table.add_row(*point, name, text, metric["unit"], str(step["ranks"]), str(step["repetition"]))
    stdout().print(table)


def _show_pairs(run: Run, fields: Sequence[Field]) -> None:
    """Show the measurements between all pairs of nodes as tables and as a picture."""
    from hidl_cli.report.plots import draw_pairs
    from hidl_cli.report.tables import pairs_tables

    for each in fields:
        for table in pairs_tables(each):
            stdout().print(table)
    picture = run.directory / "pairs.png"
    draw_pairs(fields, picture)
    say(f"picture: {picture}")


class _Display:
    """Progress of a run: one line that is updated on a terminal, and a line per round otherwise.

    If the run has a single step, the program's output is shown as well.
    """

    def __init__(self, run: Run, plan: Plan) -> None:
        self._plan = plan
        self._output = _Tail(run) if len(plan.steps) == 1 else None
        self._step = 0
        self._waiting = ""
        self._progress: Any = None
        self._task: Any = None
        self._progressing = _Rounds(run, plan)

    def __enter__(self) -> _Display:
        if stderr().is_terminal and len(self._plan.steps) > 1:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
            from rich.table import Column

            whole = Column(no_wrap=True, overflow="ellipsis")
            line = TextColumn("{task.description}", markup=False, table_column=whole)
            columns = (BarColumn(bar_width=12), TimeElapsedColumn(), line)
            self._progress = Progress(*columns, console=stderr(), transient=True)
            self._progress.start()
            self._task = self._progress.add_task("starting", total=len(self._plan.steps))
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, _: Run, status: Status) -> None:
        """Show what has changed since the last call."""
        if self._output is not None:
            self._output.show_new()
        self._show_waiting(status)
        if status.step in (self._step, 0) or len(self._plan.steps) == 1:
            return
        before, self._step = self._step, status.step
        step = self._plan.steps[status.step - 1]
        is_new = not before or self._plan.steps[before - 1].repetition < step.repetition
        if is_new:
            self._progressing.enter(step.repetition)
        if self._progress is not None:
            text = f"{self._progressing.line(status)}  [{step.title.partition(', repetition')[0]}]"
            self._progress.update(self._task, description=text, completed=status.step - 1)
        elif is_new:
            say(self._progressing.line(status))

    def _show_waiting(self, status: Status) -> None:
        """Show why the run makes no progress: it is queued, was requeued, or the scheduler is unreachable."""
        waiting = _waiting(status)
        if waiting and waiting != self._waiting:
            if self._progress is not None:
                self._progress.update(self._task, description=waiting)
            else:
                say(waiting)
        self._waiting = waiting or self._waiting


class _Rounds:
    """The rounds of a study or a sweep: the current one, the results so far, and the remaining time."""

    def __init__(self, run: Run, plan: Plan) -> None:
        self._run = run
        self._plan = plan
        self._round = 0
        self._known = ""
        self._last = plan.repetitions
        self._entered = 0.0

    def enter(self, number: int) -> None:
        """Record that round ``number`` starts, which means that all earlier rounds are complete."""
        self._round, self._entered = number, time.time()
        self._known = ""
        target = self._plan.target
        with suppress(OSError, ValueError, ArithmeticError, LookupError, TypeError, StopIteration):
            if number > 1 and any(map(compared_variables, self._plan.points)):
                self._known = self._ratios(number - 1)
            elif number > 1 and target is not None and self._plan.is_study:
                self._known = self._efficiencies(number - 1, target)

    def line(self, status: Status) -> str:
        """Return the line for the current round."""
        most = "at most " if self._plan.until_settled else ""
        text = f"round {self._round} of {most}{self._plan.repetitions}"
        done = self._round - 1
        if not done or status.started is None:
            return text + (f": {self._known}" if self._known else "")
        left = self._entered + (self._entered - status.started) / done * (self._last - done) - time.time()
        if limit := self._plan.allocation.time_limit:
            left = min(left, status.started + limit - time.time())
        return f"{text}, {most}{_minutes(max(0.0, left))} left" + (f": {self._known}" if self._known else "")

    def _ratios(self, done: int) -> str:
        """Format the rate of each compared setting relative to the default after ``done`` rounds."""
        from hidl_workloads.enough import read_points
        from hidl_workloads.repetitions import compare_rates

        better, (default, *settings) = read_points(self._run.directory, self._plan.to_json(), done)
        if not default:
            return "no comparison yet, because another run uses this machine's cores"
        ratios = [math.exp(compare_rates(each, default, better=better)[0]) for each in settings]
        points = self._plan.points[1:]
        single = len(points[0]) == 1
        names = (str(*point.values()) if single else format_parameters(point).replace(COMPARED, "") for point in points)
        return ", ".join(f"{name} {ratio:.3f}" for name, ratio in zip(names, ratios, strict=True)) + " of default"

    def _efficiencies(self, done: int, target: float) -> str:
        """Format the efficiencies after ``done`` rounds, the target, and the round that should settle the study."""
        from hidl_workloads.enough import read_efficiencies
        from hidl_workloads.repetitions import interval, rounds_needed, typical

        plan = self._plan
        most = plan.repetitions if plan.until_settled else None
        unit = "workers" if plan.workload.overhead_ranks else plan.unit
        found = read_efficiencies(self._run.directory, plan.to_json(), done)
        if not found:
            return f"no efficiency yet, because another run uses this machine's cores; target {target:.2f}"
        needed: list[int | None] = []
        parts = []
        for size, step in found.items():
            logs = [math.log(value) for value in step.efficiencies]
            ends = interval(logs, steps=len(found), rounds=most, margin=step.margin)
            text = f"{size} {unit} {math.exp(typical(logs)):.2f}"
            # After three or four rounds, an interval can be too wide to be useful.
            if ends and ends.high - ends.low < _LEGIBLE:
                text += f" ({math.exp(ends.low):.2f} to {math.exp(ends.high):.2f})"
            parts.append(text)
            if most and len(logs) > 1:
                left_out = done - len(logs)
                rounds = rounds_needed(
                    logs, math.log(target), steps=len(found), rounds=most - left_out, margin=step.margin
                )
                needed.append(rounds and rounds + left_out)
        self._last = max((each or plan.repetitions for each in needed), default=plan.repetitions)
        text = f"efficiency of {', '.join(parts)}, target {target:.2f}"
        return text + (f"; probably settled by round {self._last}" if needed and None not in needed else "")


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f}:{seconds % 60:02.0f}"


class _StateLines:
    """Progress of several runs, with a line for every change of state."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def update(self, run: Run, status: Status) -> None:
        """Show what has changed since the last call."""
        text = _waiting(status) or status.state.value.lower()
        if self._shown.get(run.id) != text:
            self._shown[run.id] = text
            say(f"{run.id}: {text}")


class RunTable:
    """A table of runs that is updated on a terminal, and a line for every change otherwise."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._lines = _StateLines()
        self._documents = {run.id: run_document(run) for run in runs}
        self._live: Any = None

    def __enter__(self) -> RunTable:
        if stdout().is_terminal:
            from rich.live import Live

            self._live = Live(console=stdout(), transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, run: Run, status: Status) -> None:
        """Show what has changed since the last call."""
        if self._live is None:
            self._lines.update(run, status)
            return
        new = run_document(run, status)
        if new != self._documents[run.id] or self._live.renderable is None:
            self._documents[run.id] = new
            self._live.update(runs_table(list(self._documents.values())), refresh=True)


def _waiting(status: Status) -> str:
    """Return the state of an unfinished run and the reason for it, or an empty string if there is no reason."""
    if status.state.is_final or not status.reason:
        return ""
    return f"{status.state.value.lower()}: {status.reason.partition(', expected')[0]}"


class _Tail:
    """The part of a run's output that has not been shown yet."""

    LIMIT = 1 << 16  # bytes shown at once, because a program can write much faster than the terminal prints

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen = 0
        self._left_out = 0
        self._is_within_line = False

    def show_new(self) -> None:
        """Print new complete lines to stderr, or only the last ones if there are many. Escape control characters."""
        try:
            with self._run.stdout.open("rb") as file:
                left_out = max(0, file.seek(0, os.SEEK_END) - self._seen - self.LIMIT)
                file.seek(self._seen + left_out)
                new = file.read(self.LIMIT)
        except OSError:
            return
        if left_out or self._is_within_line:
            begin = new.find(b"\n") + 1
            self._is_within_line = not begin
            left_out += begin or len(new)
            remember_log(self._run.stdout, self._seen, self._seen + left_out)
            new = new[begin or len(new) :]
        end = new.rfind(b"\n") + 1
        self._seen += left_out + end
        self._left_out += left_out
        if self._left_out and end:
            say(f"[{self._left_out} bytes omitted; to see everything, run: hidl logs {self._run.id}]")
            self._left_out = 0
        for line in shown_output(new[:end].decode("utf-8", "replace")).splitlines():
            say(line)
