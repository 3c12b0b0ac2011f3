"""The options of a run as typed values, converted to the same request that the command line makes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Literal

from hidl_cli.errors import MissingPrecondition, UsageError

if TYPE_CHECKING:
    from hidl_cli.doctor.examine import DoctorReport
    from hidl_cli.plan.launch_plan import Plan
    from hidl_cli.plan.prepare import RunRequest
    from hidl_cli.record.run import Run, Status


Value = str | int | float | bool
Suite = Literal["c", "python", "both"]


@dataclass(frozen=True)
class RunOptions:
    """A request, and whether to run the doctor's quick checks first."""

    request: RunRequest
    check: bool


def run_options(
    workload: str | PathLike[str] | None = None,
    *,
    command: Sequence[str | PathLike[str]] = (),
    directory: str | PathLike[str] | None = None,
    stdin: str | PathLike[str] | None = None,
    site: str | None = None,
    nodes: int | None = None,
    hosts: Sequence[str] | str | None = None,
    hostfile: str | PathLike[str] | None = None,
    share_hosts: bool = False,
    ranks_per_node: int | None = None,
    threads: int | None = None,
    parameters: Mapping[str, Value] | None = None,
    matrix: Mapping[str, Sequence[Value]] | None = None,
    metrics: Mapping[str, str] | None = None,
    suite: Suite | None = None,
    stack: str | None = None,
    env: str | PathLike[str] | None = None,
    scale: Sequence[int] | str | None = None,
    repeat: int | None = None,
    target: float | None = None,
    scaling: Literal["weak", "strong"] | None = None,
    uses_mpi: bool = True,
    baseline: Literal["single", "copies", "history"] | None = None,
    until_settled: bool = False,
    precision: float | None = None,
    launcher: str | None = None,
    mpi: str | None = None,
    device: Literal["cpu", "gpu"] | None = None,
    tuning: Mapping[str, str | int] | None = None,
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    constraint: str | None = None,
    reservation: str | None = None,
    prefix: str | PathLike[str] | None = None,
    time: float | str | None = None,
    check: bool = True,
) -> RunOptions:
    """Return the request for these options; raises ``UsageError`` if they cannot be combined."""
    from hidl_cli.launch.hosts import named_hosts
    from hidl_cli.launch.placement import Asked
    from hidl_cli.plan.prepare import RunRequest

    _reject_conflicts(workload, command, scaling=scaling, uses_mpi=uses_mpi, metrics=metrics)
    if stdin is not None and not command:
        raise UsageError(
            f"invalid stdin {fspath(stdin)}: workload {workload} reads none", hint="stdin requires command"
        )
    counts = {"nodes": nodes, "ranks_per_node": ranks_per_node, "threads": threads, "repeat": repeat}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"invalid {name} {count!r}: must be at least 1", hint=f"omit {name} for its default")
    if target is not None and not 0.01 <= target <= 2:
        raise UsageError(f"invalid target {target!r}: must be between 0.01 and 2", hint="for example 0.8")
    if precision is not None and not 0 < precision <= 1:
        raise UsageError(f"invalid precision {precision!r}: must be above 0 and at most 1", hint="for example 0.05")
    if device not in (None, "cpu", "gpu"):
        raise UsageError(f"invalid device {device!r}: must be cpu or gpu", hint="omit device for its default")
    assignments, axes = with_suite(suite, _assignments(parameters or {}), _axes(matrix or {}))
    return RunOptions(
        RunRequest(
            workload=fspath(workload) if workload is not None else "",
            command=tuple(fspath(word) for word in command),
            directory=absolute(directory),
            stdin=absolute(stdin),
            scaling=scaling,
            uses_mpi=uses_mpi,
            site=site,
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            threads=threads,
            assignments=assignments,
            matrix=axes,
            metrics=_assignments(metrics or {}),
            stack=stack,
            env=None if env is None else fspath(env),
            scale=scale if scale is None or isinstance(scale, str) else ",".join(map(str, scale)),
            repeat=repeat,
            target=target,
            baseline=baseline,
            until_settled=until_settled,
            precision=precision,
            launcher=launcher,
            mpi=mpi,
            device=device,
            tuning=_assignments(tuning or {}),
            prefix=absolute(prefix),
            asked=Asked(
                partition=partition,
                time_limit=time_limit(time),
                account=account,
                qos=qos,
                constraint=constraint,
                reservation=reservation,
                hosts=named_hosts(hosts, hostfile),
                share_hosts=share_hosts,
            ),
        ),
        check,
    )


def time_limit(time: float | str | None) -> float | None:
    """Return the time limit in seconds; raises ``UsageError`` if it is not positive.

    Numbers are seconds, and text has one of Slurm's formats.
    """
    from hidl_cli.launch.placement import limit_from

    if isinstance(time, str):
        return limit_from(time)
    if time is not None and not time > 0:
        raise UsageError(f"invalid time {time!r}: must be positive", hint='for example 600 (seconds) or "00:10:00"')
    return time


def with_suite(suite: str | None, assignments: Iterable[str], matrix: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return ``assignments`` and ``matrix`` extended by the choice of a suite of micro-benchmarks."""
    if suite == "both":
        return [*assignments], ["suite=c,python", *matrix]
    return [*assignments, *([f"suite={suite}"] if suite else ())], [*matrix]


def reject_program_options(*, scaling: bool, uses_mpi: bool, metrics: bool) -> None:
    """Raise ``UsageError`` for options that require a program of the user."""
    if not uses_mpi or (scaling and not metrics):
        raise UsageError("--scaling and --no-mpi require a program after --", hint="workloads set both in their file")


def absolute(path: str | PathLike[str] | None) -> str | None:
    """Return ``path`` as an absolute path, or None for None."""
    from pathlib import Path

    return None if path is None else str(Path(path).expanduser().absolute())


def _reject_conflicts(
    workload: str | PathLike[str] | None,
    command: Sequence[str | PathLike[str]],
    *,
    scaling: str | None,
    uses_mpi: bool,
    metrics: Mapping[str, str] | None,
) -> None:
    if isinstance(command, str):
        raise UsageError(f"invalid command {command!r}: must be a list", hint='for example ["python", "train.py"]')
    if command and workload is not None:
        raise UsageError(f"workload {workload} and a command cannot be combined", hint="omit one of them")
    if not command and workload is None:
        raise UsageError("no workload and no command", hint='run("WORKLOAD") or run(command=["python", "train.py"])')
    if not command:
        reject_program_options(scaling=scaling is not None, uses_mpi=uses_mpi, metrics=bool(metrics))


def _assignments(values: Mapping[str, Value]) -> list[str]:
    return [f"{name}={_word(value)}" for name, value in values.items()]


def _axes(values: Mapping[str, Sequence[Value]]) -> list[str]:
    from hidl_cli.plan.parameters import matrix_word
    from hidl_cli.tuning.judge import COMPARED

    axes = []
    for name, several in values.items():
        if isinstance(several, str):
            raise UsageError(f"invalid matrix {name}: must be a list", hint=f'for example {{"{name}": ["a", "b"]}}')
        words = [_word(value) for value in several]
        if not name.startswith(COMPARED) and (with_comma := [word for word in words if "," in word]):
            raise UsageError(
                f"invalid matrix {name}: value {with_comma[0]!r} contains a comma", hint="start one run for each value"
            )
        axes.append(matrix_word(name, words))
    return axes


def _word(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Submission and cancellation, shared by the command line and the Python API.


def submit(plan: Plan, script: str) -> Run:
    """Create the run's directory and submit its job; raises the errors of ``create_run`` and of the scheduler."""
    from hidl_cli.plan.launch_plan import create_run
    from hidl_cli.runs.follow import scheduler_of

    record = create_run(plan, script)
    scheduler_of(plan).submit(record)
    return record


def cancel(run: Run) -> tuple[bool, Status]:
    """Cancel a run with all its processes; return whether it was still running, and its status."""
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.record.run import State
    from hidl_cli.runs.follow import scheduler_of

    scheduler = scheduler_of(plan_of(run))
    scheduler.poll([run])
    ended_now = scheduler.cancel(run, state=State.CANCELLED)
    return ended_now, scheduler.poll([run])[0]


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """Return the warnings of a plan for the user, one sentence each."""
    from hidl_cli import batch_systems

    missing = f"site {plan.site} requires {' and '.join(plan.missing)}, which is not set"
    system = batch_systems.system(plan.scheduler)
    job = os.environ.get(system.job_id) if system else None
    outer = f"the run is a separate job: it does not use the nodes of job {job}, and waits if that job has them all"
    return (*plan.warnings, *([missing] if plan.missing else ()), *([outer] if job else ()))


def doctor_error(examined: DoctorReport, *, detailed: bool = False) -> MissingPrecondition:
    """Return the error for a run that would fail according to the doctor; ``detailed`` includes its findings."""
    ids = ", ".join(dict.fromkeys(finding.rule for finding in examined.errors))
    found = [f"  {each.rule} {each.title}: {each.seen}; fix: {each.fix}" for each in examined.errors]
    return MissingPrecondition(
        "\n".join([f"the run would fail: {ids}; nothing was submitted", *(found if detailed else ())]),
        hint="apply the fix and check again with hidl doctor, or skip these checks: --no-check",
    )
