"""Following a run on the terminal, and telling how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hidl_cli.commands.render import emit_json, say, stderr, stdout
from hidl_cli.record.run import Run
from hidl_cli.record.state import Status
from hidl_cli.runs.conclude import Conclusion, conclude
from hidl_cli.runs.follow import follow, scheduler_of
from hidl_cli.runs.history import document_of

if TYPE_CHECKING:
    from hidl_cli.runs.plan import Plan


def follow_and_judge(run: Run, plan: Plan, *, json: bool) -> None:
    """Follow ``run`` to its end, judge it, print the outcome; leaves with the verdict's exit code."""
    with _Display(run, plan) as display:
        status = follow(run, scheduler_of(plan), tell=display.update)
    conclusion = conclude(run, plan, status)
    if json:
        emit_json("hidl.run/1", **document_of(run))
    else:
        show(run, conclusion)
    if conclusion.exit_code:
        raise typer.Exit(conclusion.exit_code)


def show(run: Run, conclusion: Conclusion) -> None:
    """Print metrics, the scaling table and the verdict for people."""
    out = stdout()
    if conclusion.study is not None:
        from hidl_cli.results.plot import draw
        from hidl_cli.results.table import table

        out.print(table(conclusion.study))
        picture = run.directory / "scaling.png"
        draw(conclusion.study, picture)
        say(f"picture: {picture}")
        return
    _show_metrics(conclusion.steps)
    if conclusion.verdict is not None:
        style = {"pass": "bold green", "fail": "bold red"}.get(conclusion.verdict, "bold yellow")
        out.print(conclusion.verdict, style=style, end="")
        out.print(f": {conclusion.reason}", markup=False)
    if conclusion.hint:
        say(f"next: {conclusion.hint}")


def _show_metrics(steps: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("metric", "value", "unit", "ranks", "repetition", box=None, header_style="bold")
    for step in steps:
        for name, metric in step["metrics"].items():
            value = metric["value"]
            text = f"{value:.6g}" if isinstance(value, float) else str(value)[:16]
            table.add_row(name, text, metric["unit"], str(step["ranks"]), str(step["repetition"]))
    stdout().print(table)


class _Display:
    """Shows a run while it goes on: a progress bar on a terminal, else a line for each step.

    A run of one step also shows what the program prints, as it comes.
    """

    def __init__(self, run: Run, plan: Plan) -> None:
        self._plan = plan
        self._output = _Tail(run.stdout) if len(plan.steps) == 1 else None
        self._step = 0
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> _Display:
        if stderr().is_terminal and len(self._plan.steps) > 1:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=stderr(), transient=True)
            self._progress.start()
            self._task = self._progress.add_task("starting", total=len(self._plan.steps))
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, status: Status) -> None:
        """Show what is new."""
        if self._output is not None:
            self._output.show_new()
        if status.step == self._step:
            return
        self._step = status.step
        step = self._plan.steps[status.step - 1]
        if self._progress is not None:
            self._progress.update(self._task, completed=status.step - 1, description=step.title)
        elif len(self._plan.steps) > 1:
            say(f"step {status.step} of {status.steps}: {step.title}")


class _Tail:
    """What has been added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0

    def show_new(self) -> None:
        """Print the new whole lines to stderr, control characters made harmless."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._seen)
                new = file.read()
        except OSError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._seen += len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            say(line)
