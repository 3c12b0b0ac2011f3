"""Runs: start them, wait for them, and read their metrics."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from html import escape
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from hidl_cli.errors import ExitCode, UsageError
from hidl_cli.plan.options import RunOptions, RunRequest, absolute
from hidl_cli.redaction import of_this_process, shown

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Plan as LaunchPlan
    from hidl_cli.record import Run as Record
    from hidl_cli.record import State, Status
    from hidl_cli.site.schema import Site as SiteFile
    from hidl_cli.stack.installation import Installation


P = ParamSpec("P")
T = TypeVar("T")
_VERDICT_CODES = {"fail": ExitCode.BELOW_TARGET, "inconclusive": ExitCode.INCONCLUSIVE}


@dataclass(frozen=True)
class Metric:
    """A metric with its ``value`` (text for checksums) in ``unit``, and the ``samples`` from which it is derived."""

    name: str
    value: float | str
    unit: str
    samples: tuple[Any, ...] = ()

    def __str__(self) -> str:
        value = f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)
        return f"{self.name} {value} {self.unit}".rstrip()


@dataclass(frozen=True)
class Step:
    """One launch of a finished run.

    ``repetition`` counts from 1, ``parameters`` contains the swept parameters, and ``copy`` is the index among
    concurrent copies.
    """

    ranks: int
    repetition: int
    metrics: Mapping[str, Metric]
    parameters: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    copy: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run. ``verdict`` is None if nothing was judged; ``study`` and ``ranking`` are plain data."""

    verdict: Literal["pass", "fail", "inconclusive"] | None
    reason: str
    hint: str | None = None
    study: Mapping[str, Any] | None = None
    ranking: Mapping[str, Any] | None = None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command line for this verdict: 0, 10 or 11."""
        return _VERDICT_CODES.get(self.verdict or "", ExitCode.OK)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}" if self.verdict else self.reason


@dataclass(frozen=True)
class Plan:
    """A resolved run: the plan and the job script that ``hidl run --dry-run`` prints."""

    script: str
    document: Mapping[str, Any] = field(repr=False)
    warnings: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the document ``hidl.run-plan/1`` of ``hidl run --dry-run --json``, without secrets."""
        plan = dict(self.document)
        secrets = of_this_process().learn(plan)
        return {"schema": "hidl.run-plan/1", "plan": secrets.hide_document(plan), "script": secrets.hide(self.script)}

    def __repr__(self) -> str:
        size = len(self.document["steps"])
        where = f"site {self.document['site']}, stack {self.document['stack']}"
        return f"<hidl.Plan of {self.document['workload']['name']}: {size} step(s), {where}>"

    def _repr_html_(self) -> str:
        rows = [("workload", self.document["workload"]["name"]), ("site", self.document["site"])]
        rows += [("stack", self.document["stack"]), *(("launch", line) for line in self.commands)]
        return facts([*rows, *(("warning", line) for line in self.warnings)])


@dataclass(frozen=True)
class Run:
    """A run, identified by its directory. Several objects, threads and processes may refer to the same run.

    ``with hidl.run(...) as run:`` cancels the run if the block exits before the run has ended.
    """

    directory: Path

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.directory.name

    @property
    def status(self) -> Status:
        """The current status; reading it queries the scheduler, and determines the verdict if the run has ended."""
        from hidl_cli.runs.history import refresh

        return refresh([self._record])[0]

    @property
    def state(self) -> State:
        """The current state, such as RUNNING or COMPLETED."""
        return self.status.state

    @property
    def plan(self) -> Plan:
        """The plan that was submitted."""
        from hidl_cli.plan.launch_plan import plan_of

        return _plan(plan_of(self._record), self._record.script.read_text(encoding="utf-8"))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the plan, one sentence each."""
        return self.plan.warnings

    def wait(self, timeout: float | None = None, *, progress: Callable[[Status], object] | None = None) -> Run:
        """Wait until the run ends, determine its verdict, and return the run.

        A failed verdict is not an error (see ``verdict``). The run continues after an interrupt (Ctrl-C) or a
        ``TimeoutError``; call ``wait`` again, or ``cancel``.

        Args:
            timeout: Seconds to wait (default: no limit).
            progress: Function that is called with each status.

        Raises ``JobFailed``, ``SubmitRefused`` or ``MetricMissing`` like ``hidl run``, and ``TimeoutError`` after
        ``timeout`` seconds.
        """
        from hidl_cli.plan.launch_plan import plan_of
        from hidl_cli.runs.conclude import conclude
        from hidl_cli.runs.follow import Watch

        deadline = None if timeout is None else time.monotonic() + timeout
        watch = Watch([self._record])
        while True:
            (status,) = watch.poll()
            if progress is not None:
                progress(status)
            if status.state.is_final:
                conclude(self._record, plan_of(self._record), status)
                return self
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"run {self.id} has not ended after {timeout:g} s: {status.state.value}")
            watch.pause(at_most=left)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The launches of the run with their metrics; empty until ``wait`` returns."""
        return tuple(map(_step, (self._record.document("metrics") or {}).get("steps", [])))

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics of the largest size by name; empty until ``wait`` returns.

        If there are repetitions, the value is their mean, and the samples are their values. Raises ``UsageError`` for a
        sweep, whose ``steps`` have different parameters.
        """
        steps = self.steps
        if any(step.parameters for step in steps):
            raise UsageError(
                f"run {self.id} compares parameters, so each step has its own metrics", hint="use run.steps"
            )
        largest = max((step.ranks for step in steps if step.copy is None), default=0)
        return _pooled([step for step in steps if step.ranks == largest and step.copy is None])

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, or None until ``wait`` returns."""
        found = self._record.document("verdict")
        if found is None:
            return None
        return Verdict(found["verdict"], found["reason"], found["hint"], found.get("study"), found.get("ranking"))

    def logs(self, *, stderr: bool = False) -> str:
        """Return the program's output so far, or its stderr, with bytes that are not UTF-8 replaced."""
        file = self._record.stderr if stderr else self._record.stdout
        try:
            return file.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def cancel(self) -> Status:
        """Cancel the run with all its processes if it has not ended, and return its status."""
        from hidl_cli.runs.follow import cancel

        return cancel(self._record)[1]

    def to_json(self) -> dict[str, Any]:
        """Return the document ``hidl.run/1`` of ``hidl status RUN --json``."""
        from hidl_cli.runs.history import run_document

        return {"schema": "hidl.run/1", **run_document(self._record)}

    @property
    def _record(self) -> Record:
        from hidl_cli.record import Run as Record

        return Record(self.directory)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __repr__(self) -> str:
        verdict = self.verdict
        judged = f", {verdict.verdict}" if verdict and verdict.verdict else ""
        return f"<hidl.Run {self.id}: {self._record.status().state.value}{judged}>"

    def _repr_html_(self) -> str:
        status = self._record.status()
        rows = [("run", self.id), ("state", status.state.value)]
        if status.seconds is not None:
            rows.append(("time", f"{status.seconds:.1f} s"))
        if self.verdict is not None:
            rows.append(("verdict", str(self.verdict)))
        measured = [
            (
                " ".join([f"{step.ranks} ranks", *(f"{name}={value}" for name, value in step.parameters.items())]),
                str(step.repetition),
                ", ".join(map(str, step.metrics.values())),
            )
            for step in self.steps
        ]
        return facts(rows) + (table(("step", "repetition", "metrics"), measured) if measured else "")


def _options(make: Callable[P, RunOptions]) -> Callable[[Callable[[RunOptions], T]], Callable[P, T]]:
    """Return a decorator that replaces a function's only parameter, its options, with the parameters of ``make``."""

    def decorate(function: Callable[[RunOptions], T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            options = make(*args, **kwargs)
            options.require_valid()
            return function(options)

        signature = inspect.signature(make).replace(return_annotation=function.__annotations__["return"])
        setattr(call, "__signature__", signature)  # noqa: B010  mypy rejects the attribute on a function
        return call

    return decorate


@_options(RunOptions)
def run(options: RunOptions) -> Run:
    """Submit a run or a scaling study and return it at once, like ``hidl run --no-wait``.

    ``workload`` is a name or a YAML file. Alternatively, ``command`` is a program of yours, such as ``["python",
    "train.py"]``, which starts in ``directory`` (default: the current one). Its rank 0 reads the file ``stdin`` as
    standard input (default: empty, never the standard input of this process).

    - ``nodes`` (with ``until_done``, also a range such as ``"2-4"``), ``ranks_per_node``, ``threads`` (per rank),
      ``site``, ``stack``, ``launcher``, ``mpi`` (one of the site's MPI libraries), ``prefix`` (of the installations):
      the defaults are the same as for ``hidl run``
    - ``device``: ``"cpu"`` or ``"gpu"`` (default: GPUs if the nodes have any)
    - ``env``: your own venv or conda environment instead of a stack
    - ``hosts`` (names) or ``hostfile``: hosts without a queue, over ssh; ``share_hosts``: also those used by other runs
    - ``parameters``: values of the workload's parameters, or of ``{name}`` in ``command``; ``matrix``: several values
      per parameter, with all combinations in one allocation
    - ``metrics``: names with regular expressions that have one group and are matched against the output
    - ``scale``: run a scaling study over sizes such as ``[1, 2, 4]`` or ``"nodes=1,2"``, with ``repeat``, ``target``
      (efficiency), ``baseline``, ``until_settled``, ``precision`` (largest half width of an interval for a verdict,
      relative: 0.05 is ±5 %) and, for a command, ``scaling``
    - ``uses_mpi=False``: the command does not use MPI, so the MPI world is not checked
    - ``tuning``: run-time variables of the MPI library
    - ``profile``: record the MPI calls of the ranks (``"required"``, or ``"if-possible"`` to run unrecorded if the
      recorder cannot be built); ``hidl results profile`` shows them
    - ``partition``, ``account``, ``qos``, ``constraint``, ``reservation``, ``time`` (limit in seconds, or text in
      Slurm's format such as ``"00:10:00"``): options of the job
    - ``check=False``: skip the doctor's checks before the submission

    Raises ``UsageError``, ``InvalidInput`` (``problems`` lists all errors), ``MissingPrecondition`` or
    ``SubmitRefused``. After an interrupt (Ctrl-C) during the submission, ``runs(1)`` shows whether the run exists.
    """
    from hidl_cli.doctor.examine import before_runs, doctor_error
    from hidl_cli.launch.hosts import on_hosts
    from hidl_cli.plan.job_script import job_script
    from hidl_cli.plan.prepare import prepare
    from hidl_cli.runs.follow import submit
    from hidl_cli.site.load import load_site

    site = on_hosts(load_site(options.site), options.named_hosts)
    planned = _with_interval(prepare(RunRequest.of(options), site), site)
    script = job_script(planned)
    if options.check and (examined := before_runs([planned], site)).errors:
        raise doctor_error(examined, detailed=True)
    return Run(submit(planned, script).directory)


@_options(RunOptions)
def plan(options: RunOptions) -> Plan:
    """Return the plan that ``run`` would submit with the same arguments, without submitting anything.

    This is the equivalent of ``hidl run --dry-run``. The stack need not be installed. Propagates the errors that
    ``run`` raises for invalid arguments.
    """
    from hidl_cli.launch.hosts import on_hosts
    from hidl_cli.plan.job_script import job_script
    from hidl_cli.plan.prepare import prepare
    from hidl_cli.site.load import load_site

    site = on_hosts(load_site(options.site), options.named_hosts)
    planned = _with_interval(prepare(RunRequest.of(options, hypothetical=True), site), site)
    return _plan(planned, job_script(planned))


def _with_interval(planned: LaunchPlan, site: SiteFile) -> LaunchPlan:
    """Return the plan with its checkpoint interval if its run may take several jobs."""
    if not planned.max_jobs:
        return planned
    from hidl_cli.runs.checkpoint_interval import choose_interval, with_interval

    return with_interval(planned, choose_interval(planned, site))


def runs(number: int | None = None) -> list[Run]:
    """Return the last ``number`` runs of this user (default: all), starting with the newest."""
    from hidl_cli.plan.launch_plan import readable
    from hidl_cli.record import all_runs

    return [Run(each.directory) for each in islice(readable(all_runs()), number)]


def find(run: str | PathLike[str] | None = None) -> Run:
    """Return a run by its id, a unique prefix or suffix of its id, or its directory (default: the newest run).

    Raises ``UsageError`` unless exactly one run matches.
    """
    from hidl_cli.record import find as find_record

    return Run(find_record(None if run is None else str(run)).directory)


def _plan(planned: LaunchPlan, script: str) -> Plan:
    from hidl_cli.plan.planning import warnings_of

    sizes = {step.size: step for step in reversed(planned.steps)}
    commands = tuple(planned.command_line(sizes[size]) for size in sorted(sizes))
    return Plan(script, planned.to_json(), warnings_of(planned), commands)


def _step(entry: Mapping[str, Any]) -> Step:
    return Step(
        ranks=entry["ranks"],
        repetition=entry["repetition"],
        metrics={name: _metric(name, found) for name, found in entry["metrics"].items()},
        parameters=entry.get("parameters", {}),
        hosts=tuple(entry.get("hosts", ())),
        copy=entry.get("copy"),
    )


def _metric(name: str, found: Mapping[str, Any]) -> Metric:
    return Metric(name, found["value"], found["unit"], tuple(found.get("samples") or ()))


def _pooled(steps: list[Step]) -> dict[str, Metric]:
    """Return the metrics of all repetitions of one size, with numbers averaged."""
    if len(steps) < 2:
        return dict(steps[0].metrics) if steps else {}
    pooled = {}
    for name, first in steps[0].metrics.items():
        values = [step.metrics[name].value for step in steps if name in step.metrics]
        numbers = [value for value in values if not isinstance(value, str)]
        mean = sum(numbers) / len(numbers) if len(numbers) == len(values) else first.value
        pooled[name] = Metric(name, mean, first.unit, tuple(values))
    return pooled


# Sites, stacks and workloads.


@dataclass(frozen=True)
class Site:
    """A site; ``runs`` is True if hidl can run jobs there, and ``why_not`` contains the reason otherwise.

    ``origin`` shows whether ``file`` belongs to the user, to the system or to hidl.
    """

    name: str
    title: str | None
    status: str | None
    scheduler: str | None
    launchers: tuple[str, ...]
    runs: bool
    why_not: str | None
    origin: str
    file: str


@dataclass(frozen=True)
class Stack:
    """A stack with its installations on a site, each with its id, prefix, size in bytes, lockfile and verification."""

    name: str
    title: str
    origin: str
    installations: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Workload:
    """A workload, shipped with hidl or defined by the user."""

    name: str
    title: str
    origin: str


def sites() -> list[Site]:
    """Return all sites, including those with invalid files, like ``hidl site list``."""
    from hidl_cli.inputs.load import examine
    from hidl_cli.inputs.overlay import list_all
    from hidl_cli.plan.devices import reason_not_runnable
    from hidl_cli.site.checks import RULES

    found = []
    for entry in list_all("site"):
        site = examine(RULES, entry).model
        reason = reason_not_runnable(site) if site else "faulty file"
        found.append(
            Site(
                name=entry.name,
                title=site.title if site else None,
                status=site.status if site else "faulty",
                scheduler=site.scheduler if site else None,
                launchers=tuple(site.launchers) if site else (),
                runs=reason is None,
                why_not=reason,
                origin=entry.origin,
                file=str(entry.path),
            )
        )
    return found


def stacks(site: str | None = None, *, prefix: str | PathLike[str] | None = None) -> list[Stack]:
    """Return all stacks with their installations for the site, like ``hidl stack list``."""
    from hidl_cli.inputs.overlay import list_all
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.checks import load_stack

    where = load_site(site)
    installed = [
        found
        for root in installation.roots(where, absolute(prefix))
        for found in installation.list_all(root)
        if found.manifest["site"] == where.name
    ]
    return [
        Stack(
            name=entry.name,
            title=load_stack(entry.name).title,
            origin=entry.origin,
            installations=tuple(
                summarize_installation(found) for found in installed if found.prefix.parent.name == entry.name
            ),
        )
        for entry in list_all("stack")
    ]


def workloads() -> list[Workload]:
    """Return all workloads, like ``hidl workload list``."""
    from hidl_cli.inputs.overlay import list_all
    from hidl_cli.plan.checks import load_workload

    return [Workload(entry.name, load_workload(entry.name).title, entry.origin) for entry in list_all("workload")]


def summarize_installation(found: Installation) -> dict[str, Any]:
    """Return the details of an installation that are shown in listings."""
    from hidl_cli.stack.installation import size

    manifest = found.manifest
    verification = manifest.get("verification", {})
    return {
        "id": manifest["id"],
        "prefix": str(found.prefix),
        "current": found.is_current,
        "bytes": size(found.prefix),
        "created": manifest["created"],
        "lock": manifest["lock"]["digest"],
        "activation": str(found.activate),
        "verification": {key: verification.get(key) for key in ("where", "at", "host", "job", "run", "mpi", "checks")},
    }


# HTML tables for notebooks, in which all text is escaped.


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return an HTML table of names and values."""
    lines = [f"<tr><th style='text-align:left'>{escape(name)}</th>{_cell(value)}</tr>" for name, value in rows]
    return f"<table>{''.join(lines)}</table>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table with a header row."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(text: str) -> str:
    return f"<td style='text-align:left'>{escape(shown(text))}</td>"
