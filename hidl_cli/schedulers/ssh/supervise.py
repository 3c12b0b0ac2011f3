"""Supervise a job: ``python -m hidl_cli.schedulers.ssh.supervise [--attended] SCRIPT``.

The supervisor connects to the hosts, locks them, runs the job script on this machine, and finally ends all processes
left on the hosts. If it is killed, the kernel ends the script, and the guards on the hosts end the rest. It outlives
hidl; with ``--attended`` (``hidl shell``), it and the script use hidl's terminal and end with hidl instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from hidl_cli import process
from hidl_cli.record import Run, State
from hidl_cli.schedulers.local import birth, kill_run
from hidl_cli.schedulers.ssh import ATTENDED, HostsRequest, JobRecord, read_request
from hidl_cli.schedulers.ssh.guards import Guards, Needs, needs_of

#: Seconds between heartbeats to the guards on the hosts. After 180 s without one, a guard assumes that this machine is
#: down.
_BEAT = 15.0
_PAUSE = 0.1
#: File in the run's directory. If it exists when the job script ends, the script is started again as the next job.
CONTINUED = "continued"
_GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class JobEnd:
    """The end of a job. The fields have the same meaning as in ``decision.Job``."""

    state: State
    reason: str = ""
    by_itself: bool = False


class Supervisor:
    """Runs a run's job script. An attended script runs in this process's terminal."""

    def __init__(self, run: Run, script: Path, *, attended: bool = False) -> None:
        self._run = run
        self._script = script
        self._attended = attended
        self._request: HostsRequest = read_request(script.read_text(encoding="utf-8"))
        self._mark = self._request.run or run.id
        self._ended_by = 0  # the signal that this process received
        self._last_beat = 0.0
        pid = os.getpid()
        self.record = JobRecord(str(pid), birth(pid), self._mark, os.path.realpath(run.directory), State.PENDING)

    def run(self) -> None:
        """Run the job and record its end."""
        for number in (signal.SIGTERM, *((signal.SIGINT, signal.SIGHUP) if self._attended else ())):
            signal.signal(number, self._on_signal)
        self.record.write()
        try:
            end = self._guarded()
            while end.by_itself and (self._run.directory / CONTINUED).exists() and not self._ended_by:
                end = self._guarded()
        except Exception as error:  # other processes wait until the end is recorded
            traceback.print_exc()
            end = JobEnd(State.FAILED, f"the supervisor failed: {error}")
        finally:
            kill_run(self._mark)
        self._write(state=end.state, reason=end.reason, ended=time.time(), by_itself=end.by_itself)
        if self._ended_by == signal.SIGINT:  # so that hidl sees the interrupt
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

    def _guarded(self) -> JobEnd:
        needs = needs_of(self._run, shared=self._request.shared)
        with Guards(self._request.hosts, self._mark, needs) as guards:
            if troubles := guards.look():
                return JobEnd(State.FAILED, "; ".join(f"{each.host}: {each.what}" for each in troubles))
            end = self._lock(guards, needs) or self._with_script(guards)
            kill_run(self._mark)
            unsure = guards.end()
        if unsure:
            unsure = self._clean_up(unsure, replace(needs, lock=""))
        if unsure and end.state is not State.NODE_FAIL:
            return replace(
                end, reason="; ".join(filter(None, (end.reason, f"processes may be left on {', '.join(unsure)}")))
            )
        return end

    def _clean_up(self, hosts: list[str], needs: Needs) -> list[str]:
        """Start new guards that clean up hosts whose guards are gone; return the hosts that did not confirm this."""
        with Guards(hosts, self._mark, needs) as guards:
            guards.look()
            for guard in guards.all:
                guard.say("start")
            return guards.end()

    def _lock(self, guards: Guards, needs: Needs) -> JobEnd | None:
        """Lock the hosts one after another. If the job ends in the meantime, return how it ended."""
        for guard in guards.in_order() if needs.lock else ():
            guard.say("lock")
            while "locked" not in guard.messages:
                if end := self._watch(guards):
                    return end
                guards.listen(_PAUSE)
                if (holder := guard.messages.get("busy")) and "locked" not in guard.messages:
                    self._write(reason=f"waiting for {guard.host}, in use by {holder}", shown=True)
        for guard in guards.all:
            guard.say("start")
        return None

    def _with_script(self, guards: Guards) -> JobEnd:
        self._write(state=State.RUNNING, reason="")
        began = time.monotonic()
        environment = {**os.environ, "HIDL_RUN_ID": self._mark, "HIDL_SSH_JOB": self.record.id}
        child = self._start(["bash", f"./{self._script.name}"], environment)
        end = None
        while child.poll() is None and end is None:
            guards.listen(_PAUSE)
            end = self._watch(guards)
            if self._request.seconds is not None and time.monotonic() - began > self._request.seconds:
                end = JobEnd(State.TIMEOUT, f"time limit of {self._request.seconds:g} s")
        if end is not None:
            self._end_script(child)
            return end
        status = child.returncode
        return JobEnd(State.COMPLETED if status == 0 else State.FAILED, f"exit status {status}", by_itself=True)

    def _start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        place = self._script.parent
        if self._attended:
            return process.start_attached(command, cwd=place, env=environment)
        return process.start_bound(
            command, cwd=place, env=environment, stdout=self._run.stdout, stderr=self._run.stderr
        )

    def _watch(self, guards: Guards) -> JobEnd | None:
        """Send heartbeats, and return how the job ended if it was cancelled or a host was lost."""
        if time.monotonic() - self._last_beat > _BEAT:
            self._last_beat = time.monotonic()
            for guard in guards.all:
                guard.say("beat")
        if self._ended_by:
            return JobEnd(State.CANCELLED, "cancelled")
        lost = [guard for guard in guards.all if guard.ended]
        if lost:
            reason = "; ".join(f"connection to {guard.host} lost: {guard.complaint}" for guard in lost)
            return JobEnd(State.NODE_FAIL, reason)
        return None

    def _end_script(self, child: subprocess.Popen[bytes]) -> None:
        """Send SIGTERM to the script, which then ends the ranks, and kill the script after ``_GRACE_SECONDS``."""
        with suppress(ProcessLookupError):
            child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_SECONDS)
        if self._attended:  # it is in this process's group; `kill_run` ends the rest
            child.kill()
        else:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def _write(self, *, shown: bool = False, **changes: object) -> None:
        """Record changes. If ``shown`` is set and the job is attended, also print why it is waiting."""
        new = replace(self.record, **changes)  # type: ignore[arg-type]  # fields of several types
        if new != self.record:
            self.record = new
            new.write()
            if shown and self._attended:
                print(f"hidl: {new.reason}", file=sys.stderr)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._ended_by = number


def main(words: list[str]) -> None:
    """Supervise the job script given as the last argument. Its directory is the run's directory."""
    script = Path(words[-1]).absolute()
    Supervisor(Run(script.parent), script, attended=ATTENDED in words[:-1]).run()


if __name__ == "__main__":
    main(sys.argv[1:])
