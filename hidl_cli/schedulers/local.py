"""The machine itself as the allocation: the job script is a process in a session of its own, which outlives hidl."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources

from hidl_cli import process
from hidl_cli.documents import write_text
from hidl_cli.errors import SubmitRefused
from hidl_cli.launch.allocation import Allocation
from hidl_cli.process import Deferred
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.processes import birth, kill_all
from hidl_cli.site.schema import Policies

_GRACE_SECONDS = 10.0


class Local:
    """Runs job scripts on this machine, at once."""

    name = "local"
    submits_with: str | None = None
    directory_variable: str | None = None

    @property
    def functions(self) -> str:
        """See ``Scheduler.functions``."""
        return resources.files("hidl_cli.schedulers").joinpath("local.sh").read_text(encoding="utf-8")

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Scheduler.header``: nothing is requested."""
        return ()

    def submit(self, run: Run, *, time_limit: float | None) -> None:
        """See ``Scheduler.submit``."""
        environment = {**os.environ, "HIDL_RUN_ID": run.id}
        try:
            child = process.start_detached(
                ["bash", run.script], cwd=run.directory, env=environment, stdout=run.stdout, stderr=run.stderr
            )
        except OSError as error:
            raise SubmitRefused(f"the job script could not be started: {error}", hint="is bash installed?") from error
        _record(run, child.pid, deadline=None if time_limit is None else time.time() + time_limit)

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        """See ``Scheduler.interactive``."""
        return ("bash", "./job.sh")

    def attend(self, run: Run, header: Sequence[str], deferred: Deferred, *, terminal: bool) -> int:
        """See ``Scheduler.attend``."""
        return process.attend(
            self.interactive(header, run.id, terminal=terminal),
            cwd=run.directory,
            env={**os.environ, "HIDL_RUN_ID": run.id},
            deferred=deferred,
            started=lambda pid: _record(run, pid),
        )

    def release(self, run: Run) -> None:
        """See ``Scheduler.release``."""
        kill_all(run.id)

    def adopt(self, run: Run, job: str, directory: str) -> None:
        """See ``Scheduler.adopt``: ``job`` is a process."""
        _record(run, int(job))

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """See ``Scheduler.poll``."""
        return [self._poll(run) for run in runs]

    def _poll(self, run: Run) -> Status:
        """Return the status of one run. The time limit is enforced here: nothing else on this machine does."""
        alive = _is_alive(run)  # asked before the status is read: a job that ends in between is not taken for lost
        status = run.status()
        if status.state.is_final:
            return status
        if not alive:
            run.end_as(State.LOST)
            kill_all(run.id)
            return run.status()
        deadline = (run.document("job") or {}).get("deadline")
        if deadline is not None and time.time() > deadline:
            self.cancel(run, state=State.TIMEOUT)
            return run.status()
        return status

    def cancel(self, run: Run, *, state: State) -> None:
        """See ``Scheduler.cancel``."""
        if run.status().state.is_final:
            return
        write_text(run.directory / "reason", state.value)
        with suppress(ProcessLookupError):
            os.kill(int((run.document("job") or {})["pid"]), signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        while _is_alive(run) and time.monotonic() < deadline:
            time.sleep(0.02)
        kill_all(run.id)
        if not run.status().state.is_final:
            run.end_as(state)

    def pause(self, seconds: float) -> float:
        """See ``Scheduler.pause``: looking at a file costs nothing, so an ended job is noticed at once."""
        return min(0.2, max(0.005, seconds / 20))


def _record(run: Run, pid: int, *, deadline: float | None = None) -> None:
    """Write down that process ``pid`` is the run's job; ``deadline`` in seconds since the epoch."""
    job = {"scheduler": Local.name, "pid": pid, "birth": birth(pid), "deadline": deadline}
    run.write("job", {"schema": "hidl.job/1", **job})


def _is_alive(run: Run) -> bool:
    """Whether the process that was started for this run still exists, and no other has its number."""
    job = run.document("job") or {}
    return "pid" in job and birth(job["pid"]) == job["birth"]
