"""Open a shell, wait for its end, and leave nothing behind, whatever ends it."""

from __future__ import annotations

import shutil
import signal
import time
from contextlib import suppress

from hidl_cli import process
from hidl_cli.errors import HidlError, JobFailed, SubmitRefused
from hidl_cli.plan.launch_plan import Plan, create_run
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers import Scheduler, scheduler
from hidl_cli.shell.files import Files

_ENDS = {
    State.TIMEOUT: ("the shell reached its time limit", "ask for more with --time"),
    State.CANCELLED: ("the shell was cancelled", "open it again"),
    State.INTERRUPTED: ("the shell was interrupted", "open it again"),
    State.NODE_FAIL: ("the shell ended: a node failed", "open it again"),
    State.OUT_OF_MEMORY: ("the shell ended: out of memory", "ask for more nodes, or a partition with more memory"),
}
#: How long the scheduler may take to say how it ended a shell, in seconds.
_EXPLAINING_SECONDS = 20.0


def open_shell(plan: Plan, files: Files, *, terminal: bool) -> int:
    """Open the shell of the plan at this process's terminal, and return its exit status.

    ``hidl status`` lists it while it is open, and ``hidl cancel`` ends it. Its run is forgotten once the user left it,
    and kept if something else ended it. Raises ``SubmitRefused`` or
    ``SchedulerUnreachable`` if there is no allocation, and ``JobFailed`` if something else than the user ended it. An
    interrupt is raised once nothing is left.
    """
    run, batch = create_run(plan, files.script), scheduler(plan.scheduler)
    with process.signals_deferred() as deferred:
        try:
            files.write(run)
            client = batch.attend(run, plan.header, deferred, terminal=terminal)
            interrupted = client == -signal.SIGINT  # Ctrl-C at the terminal, which was the scheduler's own then
            status = _settle(run, batch, client, interrupted=interrupted or bool(deferred.arrived))
        except HidlError as error:
            # `hidl status` tells how another ended it, and that other may still look; a job that goes on needs it.
            if isinstance(error, SubmitRefused) or run.document("job") is None:
                _forget(run)
            raise
        _forget(run)
    if interrupted:
        raise KeyboardInterrupt
    return status


def _settle(run: Run, batch: Scheduler, client: int, *, interrupted: bool) -> int:
    """Return the exit status of the shell, once nothing of it is left; raise ``JobFailed`` for another end."""
    status = _status(run)
    if status.state is State.COMPLETED and client >= 0 and not interrupted:
        return status.exit_status or 0
    batch.release(run)
    if interrupted:
        return 0
    if status.state is State.PENDING and not _has_job(run, batch):
        raise SubmitRefused(
            f"{batch.name} gave no allocation: its words are above",
            hint="stay within the site's limits (hidl site show)",
        )
    status = _explained(run, batch)
    what, hint = _ENDS.get(status.state, (f"the shell ended: {status.state.value}", "open it again"))
    raise JobFailed(what, hint=hint)


def _explained(run: Run, batch: Scheduler) -> Status:
    """Return the status, as soon as it is final or the scheduler had its time to explain it."""
    deadline = time.monotonic() + _EXPLAINING_SECONDS
    while True:
        (status,) = batch.poll([run])
        if status.state.is_final or time.monotonic() > deadline:
            return status
        time.sleep(0.2)


def _has_job(run: Run, batch: Scheduler) -> bool:
    """Whether the scheduler took a job of the run."""
    (status,) = batch.poll([run])
    return status.state.is_final


def _status(run: Run) -> Status:
    with suppress(HidlError):
        return run.status()
    return Status(State.PENDING)


def _forget(run: Run) -> None:
    shutil.rmtree(run.directory, ignore_errors=True)
