"""The options of a run as typed values, and as the request that the command line makes too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Literal

from hidl_cli import batch_systems
from hidl_cli.errors import MissingPrecondition, UsageError

if TYPE_CHECKING:
    from hidl_cli.doctor.examine import Examined
    from hidl_cli.plan.launch_plan import Plan
    from hidl_cli.plan.prepare import RunRequest
    from hidl_cli.record.run import Run, Status


Value = str | int | float | bool
Suite = Literal["c", "python", "both"]


@dataclass(frozen=True)
class RunOptions:
    """A request, and whether the doctor's cheap rules are applied before it."""

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
    """Return the request with these options; ``UsageError`` if they do not fit together."""
    from hidl_cli.launch.hosts import named_hosts
    from hidl_cli.launch.placement import Asked
    from hidl_cli.plan.prepare import RunRequest

    _refuse_misfits(workload, command, scaling=scaling, uses_mpi=uses_mpi, metrics=metrics)
    if stdin is not None and not command:
        raise UsageError(f"stdin {fspath(stdin)}: workload {workload} reads none", hint="stdin is for a command")
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
    """Return seconds: a number as it is, and text in Slurm's forms; ``UsageError`` if it is not positive."""
    from hidl_cli.launch.placement import limit_from

    if isinstance(time, str):
        return limit_from(time)
    if time is not None and not time > 0:
        raise UsageError(f"invalid time {time!r}: must be positive", hint='600 (seconds), or "00:10:00"')
    return time


def with_suite(suite: str | None, assignments: Iterable[str], matrix: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return ``assignments`` and ``matrix`` with the choice of a suite of micro-benchmarks, or of both."""
    if suite == "both":
        return [*assignments], ["suite=c,python", *matrix]
    return [*assignments, *([f"suite={suite}"] if suite else ())], [*matrix]


def refuse_options_of_programs(*, scaling: bool, uses_mpi: bool, metrics: bool) -> None:
    """``UsageError`` for options that only a program of the user's own takes."""
    if not uses_mpi or (scaling and not metrics):
        raise UsageError("--scaling and --no-mpi are for a program after --", hint="the workload's file says both")


def absolute(path: str | PathLike[str] | None) -> str | None:
    """Return ``path``, absolute; None for None."""
    from pathlib import Path

    return None if path is None else str(Path(path).expanduser().absolute())


def _refuse_misfits(
    workload: str | PathLike[str] | None,
    command: Sequence[str | PathLike[str]],
    *,
    scaling: str | None,
    uses_mpi: bool,
    metrics: Mapping[str, str] | None,
) -> None:
    if isinstance(command, str):
        raise UsageError(f"command {command!r} is one string", hint='a list of words: ["python", "train.py"]')
    if command and workload is not None:
        raise UsageError(f"workload {workload} and a command exclude each other", hint="omit one of them")
    if not command and workload is None:
        raise UsageError("no workload and no command", hint='run("WORKLOAD") or run(command=["python", "train.py"])')
    if not command:
        refuse_options_of_programs(scaling=scaling is not None, uses_mpi=uses_mpi, metrics=bool(metrics))


def _assignments(values: Mapping[str, Value]) -> list[str]:
    return [f"{name}={_word(value)}" for name, value in values.items()]


def _axes(values: Mapping[str, Sequence[Value]]) -> list[str]:
    from hidl_cli.plan.parameters import matrix_word
    from hidl_cli.tuning.judge import COMPARED

    axes = []
    for name, several in values.items():
        if isinstance(several, str):
            raise UsageError(f"matrix {name}: {several!r} is one string", hint=f'a list: {{"{name}": ["a", "b"]}}')
        words = [_word(value) for value in several]
        if not name.startswith(COMPARED) and (with_comma := [word for word in words if "," in word]):
            raise UsageError(f"matrix {name}: value {with_comma[0]!r} has a comma", hint="start one run for each value")
        axes.append(matrix_word(name, words))
    return axes


def _word(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# From a plan to a submitted run: what the command line and Python have in common.


def submit(plan: Plan, script: str) -> Run:
    """Create the run's directory and submit its job; raises what ``create_run`` and the scheduler raise."""
    from hidl_cli.plan.launch_plan import create_run
    from hidl_cli.runs.follow import scheduler_of

    record = create_run(plan, script)
    scheduler_of(plan).submit(record)
    return record


def cancel(run: Run) -> tuple[bool, Status]:
    """End a run and all its processes; return whether it had not ended before, and its status."""
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.record.run import State
    from hidl_cli.runs.follow import scheduler_of

    scheduler = scheduler_of(plan_of(run))
    scheduler.poll([run])
    ended_now = scheduler.cancel(run, state=State.CANCELLED)
    return ended_now, scheduler.poll([run])[0]


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """Return what the user should know of a plan before it runs, in sentences."""
    missing = f"site {plan.site} requires {' and '.join(plan.missing)}; not set"
    system = batch_systems.system(plan.scheduler)
    job = os.environ.get(system.job_id) if system else None
    outer = f"the run is a job of its own: it does not use the nodes of job {job}, and waits if that job holds them all"
    return (*plan.warnings, *([missing] if plan.missing else ()), *([outer] if job else ()))


def refusal(examined: Examined, *, detailed: bool = False) -> MissingPrecondition:
    """Return the error of a run that the doctor's errors would make fail; ``detailed``: with what was found."""
    ids = ", ".join(dict.fromkeys(finding.rule for finding in examined.errors))
    found = [f"  {each.rule} {each.title}: {each.seen}; fix: {each.fix}" for each in examined.errors]
    return MissingPrecondition(
        "\n".join([f"the run would fail: {ids}; nothing was submitted", *(found if detailed else ())]),
        hint="apply the fix (hidl doctor checks again), or skip these checks: --no-check",
    )
