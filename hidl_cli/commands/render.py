"""Command output: data on stdout and messages on stderr, rendered with rich, or as JSON for programs."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hidl_cli.inputs.problems import visible
from hidl_cli.redaction import remember, shown

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from hidl_cli.doctor.examine import DoctorReport
    from hidl_cli.errors import HidlError
    from hidl_cli.plan.launch_plan import Plan
    from hidl_cli.plan.workload import DeviceChoice, Parameter, Workload
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.order import Progress
    from hidl_cli.stack.pip_settings import Downloads
    from hidl_workloads.doctor.finding import Finding


@cache
def stdout() -> Console:
    """Return the console on which data is printed (stdout)."""
    return _console(highlight=False, emoji=False)


@cache
def stderr() -> Console:
    """Return the console on which progress and messages are printed."""
    return _console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def _console(**options: Any) -> Console:
    """Return a console that hides secrets before lines are wrapped, including in table cells."""
    from rich.console import Console
    from rich.text import Text

    class Redacting(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            try:
                super().print(*objects, **options)
            except OSError:
                if not self.stderr:
                    raise
                # On a full disk, progress is lost but the command continues: its result and exit code matter more.
                sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")

        def render(self, renderable: Any, options: Any = None) -> Any:
            if isinstance(renderable, Text) and (clean := shown(renderable.plain)) != renderable.plain:
                look = {name: getattr(renderable, name) for name in ("style", "justify", "overflow", "no_wrap", "end")}
                renderable = Text(clean, **look)
            return super().render(renderable, options)

    return Redacting(**options)


@dataclass
class _Detail:
    """The verbosity: ``level`` counts the ``-v`` options, and ``log`` is the file named by ``HIDL_LOG``."""

    level: int = 0
    log: TextIO | None = None

    def note(self, text: str) -> None:
        """Write lines to the log, without secrets."""
        if self.log is None:
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        try:
            self.log.write("".join(f"{now} {line}\n" for line in printable(shown(text)).splitlines()))
            self.log.flush()
        except OSError as error:
            name, self.log = self.log.name, None
            say(f"warning: cannot write any more to the log {name}: {error.strerror}", style="yellow")


_DETAIL = _Detail()


def report_more(level: int) -> None:
    """Raise the verbosity: 1 adds full launch lines, and 2 adds every process that is started."""
    from hidl_cli import process
    from hidl_cli.quoting import sh_line

    if level > 1 > _DETAIL.level - 1:
        process.observers.append(lambda argv: say_detail(f"$ {sh_line(argv)}", level=2))
    _DETAIL.level = max(level, _DETAIL.level)


def open_log() -> None:
    """Open the log that ``HIDL_LOG`` names, if any, and raise ``MissingPrecondition`` if it cannot be written."""
    name = os.environ.get("HIDL_LOG")
    if not name or _DETAIL.log is not None:
        return
    from hidl_cli import __version__, process
    from hidl_cli.errors import MissingPrecondition
    from hidl_cli.quoting import sh_line

    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        hint = "set HIDL_LOG to a writable file, or unset it"
        raise MissingPrecondition(f"cannot write log {name}: {error.strerror}", hint=hint) from error
    _DETAIL.log = os.fdopen(descriptor, "a", encoding="utf-8")
    _DETAIL.note(f"hidl {__version__}: {sh_line(sys.argv)}")
    process.observers.append(lambda argv: _DETAIL.note(f"$ {sh_line(argv)}") if _DETAIL.level < 2 else None)


def say_detail(text: str, *, level: int = 1, otherwise: str | None = None) -> None:
    """Print ``text`` if the verbosity is at least ``level`` (2 is ``-vv``), or ``otherwise`` if it is lower.

    ``text`` is always written to the log.
    """
    if _DETAIL.level >= level:
        stderr().print(printable(text), style="dim", markup=False)
    elif otherwise is not None:
        stderr().print(printable(otherwise), style="dim", markup=False)
    _DETAIL.note(text)


def printable(text: str) -> str:
    """Escape the control characters in ``text`` except newlines and tabs, so that no terminal interprets them."""
    return "".join(c if c in "\n\t" else visible(c) for c in text)


def say(text: str, *, style: str | None = None) -> None:
    """Print a message to stderr without interpreting markup."""
    stderr().print(printable(text), style=style, markup=False)
    _DETAIL.note(text)


def write(text: str) -> None:
    """Print data to stdout without secrets, and escape control characters on a terminal."""
    text = shown(text)
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def emit_json(schema: str, **fields: Any) -> None:
    """Print the JSON document of a command."""
    remember(fields)
    text = json.dumps({"schema": schema, **shown(fields)}, indent=2, ensure_ascii=False) + "\n"
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def show_error(error: HidlError) -> None:
    """Print an error and its hint to stderr."""
    from hidl_cli.errors import InvalidInput, ProcessFailed

    console = stderr()
    _DETAIL.note(f"error: {error.message}")
    console.print("[bold red]error:[/] ", end="")
    console.print(printable(error.message), markup=False)
    if isinstance(error, InvalidInput):
        from hidl_cli.inputs.problems import render

        for problem in error.problems:
            console.print(render(problem), markup=False)
    if isinstance(error, ProcessFailed):
        from hidl_cli.quoting import sh_line

        console.print(printable(f"  command: {sh_line(error.command)}"), markup=False)
        if error.output.strip():
            console.print(printable(error.output.strip()), markup=False, style="dim")
    if error.hint:
        console.print("[bold]next:[/] ", end="")
        console.print(printable(error.hint), markup=False)


def show_interrupt() -> None:
    """Print that the command was interrupted, unless the terminal is gone."""
    with suppress(OSError):
        say("interrupted")


# Installation progress on stderr: a spinner on a terminal, and lines otherwise.


def progress() -> Progress:
    """Return the progress display that suits stderr."""
    return _StepSpinner() if sys.stderr.isatty() else _StepLines()


# The progress and the completed targets in make's output, for CMake builds.
_PERCENT = re.compile(r"\[ *\d+%\] .*")
_TARGET = re.compile(r"\[ *\d+%\] Built target .*")
_POLL_SECONDS = 1.0


class _StepLines:
    """Progress with a line for each step, completed target and built package, without importing rich."""

    def say(self, text: str) -> None:
        sys.stderr.write(printable(shown(text)) + "\n")

    @contextmanager
    def step(self, title: str, log: Path | None = None) -> Iterator[None]:
        self.say(title)
        if log is None:
            yield
            return
        over = threading.Event()
        watcher = threading.Thread(target=self._follow, args=(log, _size(log), over), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def _follow(self, log: Path, position: int, over: threading.Event) -> None:
        """Report make's completed targets, Spack's built packages and uv's downloads after ``position`` in the log."""
        from hidl_cli.stack.pip_settings import Downloads
        from hidl_cli.stack.providers.spack.call import Builds

        downloads, builds = Downloads(), Builds()
        while True:
            last = over.wait(_POLL_SECONDS)
            new = _read(log, position)
            whole = new[: new.rfind(b"\n") + 1]
            position += len(whole)
            for line in whole.decode("utf-8", "replace").splitlines():
                before, downloads = downloads, downloads.after(line)
                if downloads.done - before.done:
                    self.say(f"  {line.strip().lower()} ({downloads})")
                elif _TARGET.fullmatch(line):
                    self.say(f"  {line}")
                elif built := builds.read(line, time.monotonic()):
                    self.say(f"  {built}")
            if last:
                return


class _StepSpinner:
    """Progress with a spinner that shows the time and the last log line, and with a final line for the duration."""

    def say(self, text: str) -> None:
        say(text, style="yellow")

    @contextmanager
    def step(self, title: str, log: Path | None = None) -> Iterator[None]:
        from rich.console import Group
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        from hidl_cli.stack.pip_settings import Downloads
        from hidl_cli.stack.providers.spack.call import Builds

        began = time.monotonic()
        old = _size(log) if log is not None else 0

        class Status:
            """The spinner's text for each frame, with the last package that Spack has built.

            While uv downloads, a progress bar shows the downloaded bytes.
            """

            builds, known, built = Builds(), 0, ""

            def __rich__(self) -> RenderableType:
                spinner.update(text=_status(title, time.monotonic() - began, log))
                new = b"" if log is None else _read(log, old)
                lines = new[: new.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()
                for line in lines[self.known :]:
                    self.built = self.builds.read(line, time.monotonic()) or self.built
                self.known = len(lines)
                downloads = Downloads().after_all(lines)
                rows: list[RenderableType] = [spinner]
                if self.built:
                    rows.append(Text(f"  {self.built}", "dim"))
                if downloads.under_way:
                    rows.append(_bar(downloads))
                return Group(*rows)

        spinner = Spinner("dots")
        with Live(Status(), console=stderr(), transient=True, refresh_per_second=10):
            yield
        stderr().print(f"[green]done[/] {title} [dim]{time.monotonic() - began:.1f} s")


def _bar(downloads: Downloads) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    row = Table.grid(padding=(0, 1))
    row.add_row("", ProgressBar(total=downloads.bytes, completed=downloads.done_bytes, width=30), str(downloads))
    return row


def _status(title: str, seconds: float, log: Path | None) -> Text:
    from rich.text import Text

    return Text.assemble(
        f"{title}  ", (f"{seconds:.0f} s  {_last_line(log)}", "dim"), overflow="ellipsis", no_wrap=True
    )


def _last_line(log: Path | None) -> str:
    """Return make's last progress line, which warnings may follow, or the last line of the log if there is none."""
    if log is None:
        return ""
    tail = _read(log, max(0, _size(log) - 65536)).decode("utf-8", "replace")
    lines = [line.strip() for line in tail.split("\n") if line.strip()]
    percent = next((line for line in reversed(lines) if _PERCENT.fullmatch(line)), None)
    return shown(printable(percent or (lines[-1] if lines else "")))


def _size(log: Path) -> int:
    return log.stat().st_size if log.is_file() else 0


def _read(log: Path, begin: int) -> bytes:
    """Return the log from offset ``begin``, or empty bytes if it does not exist."""
    if not log.is_file():
        return b""
    with log.open("rb") as file:
        file.seek(begin)
        return file.read()


# Tables of runs, results and workloads.


def show_table(rows: Sequence[Mapping[str, Any]], *, whole: Collection[str] = ()) -> None:
    """Print rows with the same keys as a table; columns in ``whole`` do not wrap."""
    if not rows:
        say("none")
        return
    stdout().print(_table(rows, whole))


def _table(rows: Sequence[Mapping[str, Any]], whole: Collection[str] = ()) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for head in rows[0] if rows else ():
        table.add_column(head, no_wrap=head in whole)
    for row in rows:
        table.add_row(
            *(Text(printable("" if value is None else str(value)), overflow="fold") for value in row.values())
        )
    return table


def show_sites(documents: Sequence[dict[str, Any]]) -> None:
    """Print a table of sites."""
    show_table(
        [
            {
                "name": document["name"],
                "status": document["status"] or "unknown",
                "scheduler": document["scheduler"] or "unknown",
                "launchers": ", ".join(document["launchers"]) or "unknown",
                "runs": "yes" if document["runs"] else f"no: {document['why_not']}",
                "title": document["title"],
            }
            for document in documents
        ]
    )


def show_runs(documents: Sequence[dict[str, Any]]) -> None:
    """Print a table of runs."""
    show_table(_rows(documents))


def runs_table(documents: Sequence[dict[str, Any]]) -> Table:
    """Return the table that ``show_runs`` prints, for live updates on a terminal."""
    return _table(_rows(documents))


def _rows(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "run": document["run"],
            "state": document["state"],
            "job": document["job"],
            "step": f"{document['step']}/{document['steps_planned']}",
            "seconds": _format_seconds(document["seconds"]),
            "stack": document["stack"],
            "verdict": (document["verdict"] or {}).get("verdict"),
            "reason": document["reason"],
        }
        for document in documents
    ]


def show_run(document: dict[str, Any]) -> None:
    """Print a table of everything known about a run."""
    keys = ("run", "directory", "created", "site", "stack", "workload", "launcher")
    rows = [{"": key, " ": document[key]} for key in keys]
    more = ("scheduler", "job", "state", "reason")
    rows += [{"": key, " ": document[key]} for key in more]
    rows += [
        {"": "seconds", " ": _format_seconds(document["seconds"])},
        {"": "exit_status", " ": document["exit_status"]},
    ]
    rows.append({"": "step", " ": f"{document['step']} of {document['steps_planned']}"})
    rows += [{"": "earlier attempt", " ": _format_attempt(each)} for each in document["attempts"]]
    if len({*document["nodes_of_jobs"]}) > 1:
        rows.append({"": "nodes of each job", " ": ", ".join(map(str, document["nodes_of_jobs"]))})
    verdict = document["verdict"]
    if verdict:
        rows.append({"": "verdict", " ": f"{verdict['verdict'] or 'none'}: {verdict['reason']}"})
    elif document["goodput"]:
        rows.append({"": "goodput so far", " ": document["goodput"]["summary"]})
    rows += [{"": "cause", " ": f"{cause['title']} ({cause['rule']})"} for cause in document["causes"][:3]]
    show_table(rows)


def _format_seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.1f}"


def _format_attempt(attempt: dict[str, Any]) -> str:
    """Format an attempt after which the job was requeued, such as ``CANCELLED after 35 s on n1, n2``."""
    ran = attempt["started"] is not None and attempt["ended"] is not None
    after = f" after {attempt['ended'] - attempt['started']:.0f} s" if ran else ""
    return f"{attempt['state']}{after} on {', '.join(attempt['hosts']) or 'no host'}"


def show_results(documents: Sequence[dict[str, Any]]) -> None:
    """Print a table of runs with their verdicts, and the mean of one metric over the steps with the most ranks."""
    show_table([_result(document) for document in documents], whole=("run",))


def _result(document: dict[str, Any]) -> dict[str, Any]:
    largest = max((step["ranks"] for step in document["steps"]), default=None)
    metrics = [step["metrics"] for step in document["steps"] if step["ranks"] == largest]
    names = [name for each in metrics for name in each]
    name = document["metric"] if document["metric"] in names or not names else names[0]
    found = [each[name] for each in metrics if name in each]
    return {
        "run": document["run"],
        "site": document["site"],
        "ranks": largest,
        "metric": name,
        "value": f"{sum(metric['value'] for metric in found) / len(found):.4g}" if found else None,
        "unit": found[0]["unit"] if found else None,
        "efficiency": None if document["efficiency"] is None else f"{document['efficiency']:.3f}",
        "verdict": document["verdict"]["verdict"],
    }


def show_result(document: dict[str, Any]) -> None:
    """Print the origin of a run, its verdict, and a summary of each metric for every size and parameter value."""
    from hidl_cli.analysis.ranking import overheads
    from hidl_cli.plan.parameters import format_parameters
    from hidl_cli.report.tables import overhead_table
    from hidl_cli.runs.metrics import describe_energy

    keys = ("run", "directory", "created", "site", "partition", "workload", "stack", "lock", "launcher", "mpi")
    rows = [{"": key, " ": document[key]} for key in keys]
    for key in ("parameters", "tuning"):
        rows.append({"": key, " ": ", ".join(f"{name}={value}" for name, value in document[key].items())})
    verdict = document["verdict"]
    rows.append({"": "verdict", " ": f"{verdict['verdict'] or 'none'}: {verdict['reason']}"})
    rows.append({"": "energy", " ": describe_energy(document["energy"])})
    show_table(rows)
    values: dict[tuple[str, int, int, str, str], list[float]] = {}
    for step in document["steps"]:
        for name, metric in step["metrics"].items():
            measure = (format_parameters(step["parameters"]), step["nodes"], step["ranks"], name, metric["unit"])
            values.setdefault(measure, []).append(metric["value"])
    show_table(
        [
            {
                **({"matrix": point} if any(step["parameters"] for step in document["steps"]) else {}),
                "nodes": nodes,
                "ranks": ranks,
                "metric": name,
                "mean": f"{sum(found) / len(found):.6g}",
                "least": f"{min(found):.6g}",
                "most": f"{max(found):.6g}",
                "unit": unit,
                "repetitions": len(found),
            }
            for (point, nodes, ranks, name, unit), found in values.items()
        ]
    )
    for overhead in overheads(document["steps"]):
        stdout().print(overhead_table(overhead))
    if document["published"]:
        stdout().print("published values, for reference (other machines and programs; no verdict depends on them):")
    for each in document["published"]:
        where = f"{each['scale']}; {each['platform']}; {each['source']}"
        stdout().print(f"  {each['title']}: {each['figure']} ({where})", markup=False, highlight=False)


def show_workload(workload: Workload) -> None:
    """Print the parameters and metrics of a workload."""
    from hidl_cli.plan.workload import names_of

    found = {name: each.pattern for each in workload.program.patterns for name in names_of([each])}
    stdout().print(f"{workload.name}: {workload.title}", markup=False)
    stdout().print("stacks: " + ", ".join(choice.stack for choice in workload.stacks), markup=False)
    devices = ", ".join(map(_format_device, workload.devices or ()))
    stdout().print(f"devices: {devices or 'the program decides'}", markup=False)
    if workload.scaling:
        scaling = workload.scaling
        stdout().print(f"scaling: {scaling.kind}, by {scaling.metric}, target {scaling.target:g}", markup=False)
    show_table(
        [
            {
                "parameter (--set)": name,
                "default": _format_default(parameter),
                "values": ", ".join(parameter.choices) or parameter.type,
                "unit": parameter.unit,
                "": parameter.help,
            }
            for name, parameter in workload.parameters.items()
        ]
    )
    show_table(
        [
            {
                "metric": name,
                "unit": metric.unit,
                "better": metric.better,
                "required": metric.required,
                **({"pattern": found.get(name)} if found else {}),
            }
            for name, metric in workload.metrics.items()
        ]
    )


def _format_default(parameter: Parameter) -> str:
    """Format a default and the defaults on GPUs, such as ``8 (GPUs: 256 or 64)``."""
    on_gpus = " or ".join(str(each.value) for each in parameter.on_gpus)
    return f"{parameter.default} (GPUs: {on_gpus})" if on_gpus else str(parameter.default)


def _format_device(choice: DeviceChoice) -> str:
    """Format a device and its conditions, such as ``gpu (buffer=cupy; requires cupy)``."""
    from hidl_cli.plan.parameters import format_parameters

    when = {name: "|".join(map(str, values)) for name, values in choice.when.items()}
    conditions = [format_parameters(when)] if when else []
    conditions += [f"requires {', '.join(choice.packages)}"] if choice.packages else []
    return choice.device + (f" ({'; '.join(conditions)})" if conditions else "")


# Doctor findings.


_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def show(findings: Iterable[Finding], *, on_stderr: bool = False) -> None:
    """Print findings grouped by rule: location, observation, fix and reason."""
    from itertools import groupby

    from rich.text import Text

    console = stderr() if on_stderr else stdout()

    def line(label: str, text: str) -> None:
        console.print(Text.assemble((f"  {label}: ", "bold"), printable(text)), soft_wrap=True)

    for (severity, rule), group in groupby(findings, key=lambda finding: (finding.severity, finding.rule)):
        alike = list(group)
        console.print(Text.assemble((f"{severity} {rule}", _STYLES[severity]), " ", alike[0].title), soft_wrap=True)
        for finding in alike:
            if finding.where and finding.where not in finding.seen:
                line("where", finding.where)
            line("seen", finding.seen)
            line("fix", finding.fix)
        line("why", alike[0].why)


def summary(findings: Iterable[Finding]) -> str:
    """Return the number of findings of each severity, such as ``1 error, 2 warnings``."""
    from hidl_workloads.doctor.finding import SEVERITIES

    severities = [finding.severity for finding in findings]
    counts = [(severities.count(severity), severity) for severity in SEVERITIES]
    words = [f"{count} {name}{'s' if count > 1 and name != 'info' else ''}" for count, name in counts if count]
    return ", ".join(words) or "no problems found"


def check_before_run(plan: Plan, site: Site, *, hypothetical: bool) -> None:
    """Apply the doctor's quick rules to a plan; print errors and raise exceptions as ``stop_at_errors`` does."""
    from hidl_cli.doctor.examine import before_runs

    stop_at_errors(before_runs([plan], site), hypothetical=hypothetical)


def stop_at_errors(examined: DoctorReport, *, hypothetical: bool = False) -> None:
    """Print errors and warnings to stderr, and raise ``MissingPrecondition`` for errors unless ``hypothetical``."""
    from hidl_cli.doctor.examine import doctor_error

    show([finding for finding in examined.findings if finding.severity != "info"], on_stderr=True)
    if examined.errors and not hypothetical:
        raise doctor_error(examined)
