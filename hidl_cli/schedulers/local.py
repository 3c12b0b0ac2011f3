"""The machine itself as the allocation: the job script is a process in a session of its own, which outlives hidl."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hidl_cli import process
from hidl_cli.documents import write_text
from hidl_cli.errors import SubmitRefused
from hidl_cli.launch.allocation import Allocation
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.site.schema import Policies

_GRACE_SECONDS = 10.0


class Local:
    """Runs job scripts on this machine, at once."""

    name = "local"

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Scheduler.header``: there is nobody to be asked."""
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
        adopt(run, child.pid, deadline=None if time_limit is None else time.time() + time_limit)

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """See ``Scheduler.poll``."""
        return [self._poll(run) for run in runs]

    def _poll(self, run: Run) -> Status:
        """How one run fares. The time limit is held here: this machine has nobody else to do it."""
        alive = _is_alive(run)  # asked before the status is read: a job that ends in between is not taken for lost
        status = run.status()
        if status.state.is_final:
            return status
        if not alive:
            run.end_as(State.LOST)
            _kill_all(run)
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
        _kill_all(run)
        if not run.status().state.is_final:
            run.end_as(state)

    def pause(self, seconds: float) -> float:
        """See ``Scheduler.pause``: looking at a file costs nothing, so an ended job is noticed at once."""
        return min(0.2, max(0.005, seconds / 20))


def adopt(run: Run, pid: int, *, deadline: float | None = None) -> None:
    """Write down that process ``pid`` is the run's job, whoever started it; ``deadline`` in seconds since the epoch."""
    job = {"scheduler": Local.name, "pid": pid, "birth": _birth(pid), "deadline": deadline}
    run.write("job", {"schema": "hidl.job/1", **job})


def _is_alive(run: Run) -> bool:
    """Is the process that was started for this run still there, and no other with its number?"""
    job = run.document("job") or {}
    return "pid" in job and _birth(job["pid"]) == job["birth"]


def _birth(pid: int) -> str | None:
    """What tells a process from an earlier or later one of the same number; None where there is none (or a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def _kill_all(run: Run) -> None:
    """SIGKILL to every process that carries the run's id in its environment: ranks have sessions of their own."""
    mark = f"HIDL_RUN_ID={run.id}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)
