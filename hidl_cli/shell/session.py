"""Open a shell, wait for its end, and clean up regardless of what ended it."""

from __future__ import annotations

import getpass
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hidl_cli import batch_systems, paths, process
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, JobFailed, MissingPrecondition, SubmitRefused, UsageError
from hidl_cli.launch.options import clock
from hidl_cli.plan.job_script import values_of
from hidl_cli.plan.launch_plan import Plan, create_run
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.plan.workload import Parameter, Program, StackChoice, Workload
from hidl_cli.quoting import sh_line
from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers import Scheduler, scheduler
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import UNSET, variables
from hidl_cli.templates import render_script


@dataclass(frozen=True)
class ShellFiles:
    """The contents of the files that a shell needs; ``ranks_line`` is the command line that ``ranks PROGRAM`` runs."""

    script: str
    ranks: str
    bashrc: str
    ranks_line: str

    def write(self, run: Run) -> None:
        """Write the files that accompany the job script."""
        write_text(run.directory / "bin" / "ranks", self.ranks, mode=0o755)
        write_text(run.directory / "bashrc", self.bashrc)


def render_files(plan: Plan, site: Site, command: Sequence[str], cwd: Path) -> ShellFiles:
    """Render the files needed for a shell session that starts in ``cwd``."""
    ranks, line = _ranks(plan)
    batch = batch_systems.system(plan.scheduler) is not None
    limit = plan.allocation.time_limit
    login = site.login_host or (socket.gethostname() if batch else "")
    options = [
        *(["--beat"] if batch else []),
        *(["--limit", f"{limit:.0f}"] if limit is not None and not batch else []),
        *("--user", getpass.getuser(), "--login", login),
    ]
    script = render_script(
        "shell.sh.j2",
        {
            **values_of(plan),
            "local_limit": 0,  # enforced by the process that opened the shell
            "batch": batch,
            "command": list(command),
            "cwd": str(cwd),
            "options": options,
            "hints": _hints(plan, line),
        },
    )
    prefix = Path(plan.prefix)
    bashrc = render_script("bashrc.j2", {"unset": UNSET, "variables": variables(prefix, plan.stack)})
    return ShellFiles(script, ranks, bashrc, line)


def _ranks(plan: Plan) -> tuple[str, str]:
    """Return the text of the ``ranks`` script, and its launch line for display."""
    (step,) = plan.steps
    hosts = str(paths.runs() / plan.run / "steps" / "1" / "hosts")
    launch = replace(step.launch, argv=_at(hosts, step.launch.argv), rest=_at(hosts, step.launch.rest))
    assert launch.words[-1] == PROGRAM
    if launch.input_option is not None:
        launch = replace(launch, argv=(*launch.argv[:-1], launch.input_option, PROGRAM))
    text = render_script(
        "ranks.sh.j2",
        {
            "open_mpi": plan.launcher == "mpirun",
            "title": _title(plan),
            "ranks": step.placement.ranks,
            "launch": launch,
            "argv": launch.argv if launch.rest else launch.argv[:-1],
            "rest": launch.rest[:-1],
        },
    )
    return text, sh_line(launch.words)


def _at(hosts: str, words: Sequence[str]) -> tuple[str, ...]:
    """Replace the host file's relative path with the absolute one, because ``ranks`` can be called in any directory."""
    return tuple(hosts if word == "steps/1/hosts" else word for word in words)


def _title(plan: Plan) -> str:
    return plan.steps[0].title.rpartition(",")[0]


def _hints(plan: Plan, ranks_line: str) -> list[str]:
    """Return the lines that greet the user when the shell starts."""
    limit = plan.allocation.time_limit
    until = f" for {clock(limit)}" if limit is not None else ""
    return [
        f"stack {plan.stack} on {plan.site}{until}; exit or Ctrl-D ends the shell and everything started in it",
        f"ranks PROGRAM starts {_title(plan)}: {ranks_line}",
    ]


# Resolve the options of ``hidl shell`` into a plan whose only step is the launch that ``ranks`` performs.


#: Name of the workload in run listings.
NAME = "shell"
#: Placeholder for the program in the launch line of ``ranks``.
PROGRAM = "PROGRAM"


def plan_shell(request: RunRequest, site: Site, command: Sequence[str]) -> Plan:
    """Resolve the options into a plan without side effects; ``command``, if given, runs instead of a shell.

    Propagates errors raised by ``prepare``, and raises ``MissingPrecondition`` if the site's scheduler does not support
    shells.
    """
    assert request.stack is not None
    workload = Workload(
        name=NAME,
        title="a command at a terminal" if command else "an interactive shell",
        program=Program(command=[PROGRAM], arguments=[]),
        stacks=[StackChoice(stack=request.stack)],
        parameters={"command": Parameter(type="str", default="", help="command to run instead of a shell")},
    )
    assignments = (f"command={sh_line(command)}",) if command else ()
    plan = prepare(replace(request, workload=NAME, parameters=assignments), site, workload)
    interactive = getattr(scheduler(plan.scheduler), "interactive", None)  # optional for plug-ins
    line = interactive and interactive(plan.header, plan.run, terminal=True)
    if not line:
        raise MissingPrecondition(
            f"hidl shell is not supported with scheduler {plan.scheduler}",
            hint=f"open a shell on a node as the site's documentation describes, and run: source {plan.activate}",
        )
    if not request.hypothetical and shutil.which(line[0]) is None:
        raise MissingPrecondition(f"{line[0]} not found on this host", hint=f"use a login host of site {site.name}")
    return plan


def require_terminal(command: Sequence[str], *, terminal: bool) -> None:
    """Raise ``UsageError`` if an interactive shell is requested without a terminal."""
    if not command and not terminal:
        raise UsageError(
            "hidl shell requires a terminal, but standard input or output is not one",
            hint="to run a command instead, use: hidl shell STACK -- COMMAND...",
        )


_ENDS = {
    State.TIMEOUT: ("the shell reached its time limit", "request more with --time"),
    State.CANCELLED: ("the shell was cancelled", "open a new one"),
    State.INTERRUPTED: ("the shell was interrupted", "open a new one"),
    State.NODE_FAIL: ("the shell ended: a node failed", "open a new one"),
    State.OUT_OF_MEMORY: ("the shell ended: out of memory", "request more nodes, or a partition with more memory"),
}
#: Maximum time in seconds to wait for the scheduler to explain why a shell ended.
_EXPLAINING_SECONDS = 20.0


def open_shell(plan: Plan, files: ShellFiles, *, terminal: bool) -> int:
    """Open the planned shell in this process's terminal, and return the shell's exit status.

    While the shell is open, ``hidl status`` lists it and ``hidl cancel`` ends it. The run is removed after the user
    leaves the shell, but kept if something else ended it. Raises ``SubmitRefused`` or ``SchedulerUnreachable`` if there
    is no allocation, and ``JobFailed`` if anything but the user ended the shell. An interrupt is raised again after the
    cleanup.
    """
    run, batch = create_run(plan, files.script), scheduler(plan.scheduler)
    with process.signals_deferred() as deferred:
        try:
            files.write(run)
            client = batch.attend(run, plan.header, deferred, terminal=terminal)
            interrupted = client == -signal.SIGINT  # Ctrl-C went to the client, which had the terminal
            status = _settle(run, batch, client, interrupted=interrupted or bool(deferred.arrived))
        except HidlError as error:
            # Keep the directory if a job exists, because it may still run, and `hidl status` then shows who ended it
            # and how.
            if isinstance(error, SubmitRefused) or run.document("job") is None:
                _forget(run)
            raise
        _forget(run)
    if interrupted:
        raise KeyboardInterrupt
    return status


def _settle(run: Run, batch: Scheduler, client: int, *, interrupted: bool) -> int:
    """Clean up and return the shell's exit status. Raises ``JobFailed`` if anything but the user ended the shell."""
    status = _status(run)
    if status.state is State.COMPLETED and client >= 0 and not interrupted:
        return status.exit_status or 0
    batch.release(run)
    if interrupted:
        return 0
    if status.state is State.PENDING and not _has_job(run, batch):
        raise SubmitRefused(
            f"{batch.name} did not grant an allocation: see its output above",
            hint="stay within the site's limits (hidl site show)",
        )
    status = _explained(run, batch)
    what, hint = _ENDS.get(status.state, (f"the shell ended: {status.state.value}", "open a new one"))
    raise JobFailed(what, hint=hint)


def _explained(run: Run, batch: Scheduler) -> Status:
    """Return the run's final status or, if the scheduler does not report it in time, the last known status."""
    deadline = time.monotonic() + _EXPLAINING_SECONDS
    while True:
        (status,) = batch.poll([run])
        if status.state.is_final or time.monotonic() > deadline:
            return status
        time.sleep(0.2)


def _has_job(run: Run, batch: Scheduler) -> bool:
    """Return whether the scheduler accepted a job for the run."""
    (status,) = batch.poll([run])
    return status.state.is_final


def _status(run: Run) -> Status:
    with suppress(HidlError):
        return run.status()
    return Status(State.PENDING)


def _forget(run: Run) -> None:
    shutil.rmtree(run.directory, ignore_errors=True)
