"""The machine itself as the allocation: the job script is a process in a session of its own, which outlives hidl."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from importlib import resources
from pathlib import Path

from hidl_cli import process
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, SubmitRefused
from hidl_cli.launch.placement import Allocation
from hidl_cli.process import Deferred
from hidl_cli.record.run import Run, State, Status
from hidl_cli.schedulers.backend import identify, is_copied, read_job, time_of, without_shell_options
from hidl_cli.schedulers.decision import read_status
from hidl_cli.site.schema import Policies


def birth(pid: int) -> str | None:
    """Return what tells a process from others of the same number; None if there is none (or a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def space() -> str:
    """Return the name of the process numbers that are seen from here: a container has its own."""
    return str(Path("/proc/self/ns/pid").readlink())


def kill_run(run: str) -> None:
    """Kill every process that has the run's id in its environment: ranks have sessions of their own."""
    _kill("HIDL_RUN_ID", lambda value: value == run)


def of_run(run: str) -> Iterator[int]:
    """Yield the numbers of the processes that ``kill_run`` kills."""
    return _with_variable("HIDL_RUN_ID", lambda value: value == run)


def kill_job(directory: Path) -> None:
    """Kill every process of the job in that directory, by its environment; a copy's job has the same run id."""

    def is_there(value: str) -> bool:
        with suppress(OSError):
            return Path(value).parent.samefile(directory)
        return False

    _kill("HIDL_FINDINGS", is_there)


def send(pid: int, number: signal.Signals, fits: Callable[[], bool]) -> None:
    """Send a signal to a process of this user if ``fits()``; spare other users' processes, even as root.

    The process is opened before ``fits`` looks at it, so that a later process of the same number gets no signal.
    """
    with suppress(OSError):
        process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _user(pid) == os.getuid() and fits():
                _send(process, pid, number)
        finally:
            os.close(process)


def _send(process: int, pid: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(process, number)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSYS:
            raise
        os.kill(pid, number)  # before Linux 5.1


def _user(pid: int) -> int | None:
    """Return the process's real uid, which a set-uid program keeps."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1])
    return None


def _kill(variable: str, fits: Callable[[str], bool]) -> None:
    for pid in _with_variable(variable, fits):
        send(pid, signal.SIGKILL, lambda pid=pid: _has(pid, variable, fits))  # type: ignore[misc]


def _with_variable(variable: str, fits: Callable[[str], bool]) -> Iterator[int]:
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        if _has(pid, variable, fits) and _user(pid) == os.getuid():
            yield pid


def _has(pid: int, variable: str, fits: Callable[[str], bool]) -> bool:
    begin = f"{variable}=".encode()
    with suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        values = [each for each in environment if each.startswith(begin)]
        return bool(values) and fits(os.fsdecode(values[-1].removeprefix(begin)))
    return False


_GRACE_SECONDS = 10.0
#: How long after its directory was made a run without a process counts as one that is being started.
_START_SECONDS = 60.0


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

    def submit(self, run: Run) -> None:
        """See ``Scheduler.submit``."""
        try:
            child = process.start_detached(
                [_bash(), run.script], cwd=run.directory, env=_environment(run), stdout=run.stdout, stderr=run.stderr
            )
        except OSError as error:
            raise SubmitRefused(f"the job script could not be started: {error}", hint="is bash installed?") from error
        _record(run, child.pid)

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        """See ``Scheduler.interactive``."""
        return (_bash(), "./job.sh")

    def attend(self, run: Run, header: Sequence[str], deferred: Deferred, *, terminal: bool) -> int:
        """See ``Scheduler.attend``."""
        return process.attend(
            self.interactive(header, run.id, terminal=terminal),
            cwd=run.directory,
            env=_environment(run),
            deferred=deferred,
            started=lambda pid: _record(run, pid),
        )

    def release(self, run: Run) -> None:
        """See ``Scheduler.release``."""
        kill_job(run.directory)

    def adopt(self, run: Run, job: str, directory: str) -> None:
        """See ``Scheduler.adopt``: ``job`` is a process."""
        _record(run, int(job))

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """See ``Scheduler.poll``."""
        return [self._poll(run) for run in runs]

    def _poll(self, run: Run) -> Status:
        """Return the status of one run, without touching its processes: the job itself enforces its time limit."""
        process = _Process.of(run)  # asked before the status is read: a job that ends in between is not taken for lost
        status = read_status(run)
        if status.state.is_final:
            return status
        if process.where is _Where.ELSEWHERE:
            return replace(status, reason=f"on {process.host}; whether it lives cannot be seen on {_host()}")
        if process.where is _Where.GONE:
            return run.end_as(State.LOST if process.why_gone else _state_of_killed(run), reason=process.why_gone)
        return status

    def cancel(self, run: Run, *, state: State) -> bool:
        """See ``Scheduler.cancel``; raises ``HidlError`` if the job is on another machine."""
        process = _Process.of(run)
        if read_status(run).state.is_final:
            kill_job(run.directory)  # what a job that was killed has left
            return False
        if process.where is _Where.ELSEWHERE:
            raise HidlError(
                f"run {run.id} was started on {process.host}; this is {_host()}",
                hint=f"on {process.host}: hidl cancel {run.id}",
            )
        with suppress(OSError):  # on a full disk, the job ends as CANCELLED
            write_text(run.directory / "reason", state.value)
        deadline = time.monotonic() + _GRACE_SECONDS
        if process.pid is not None and process.where is _Where.HERE:
            send(process.pid, signal.SIGTERM, lambda: process.is_alive)
        while process.pid is not None and process.is_alive and time.monotonic() < deadline:
            time.sleep(0.02)
        kill_job(run.directory)
        if process.pid is not None:
            send(process.pid, signal.SIGKILL, lambda: process.is_alive)
        if not read_status(run).state.is_final:
            run.end_as(state)
        return True

    def pause(self, seconds: float) -> float:
        """See ``Scheduler.pause``: looking at a file costs nothing, so an ended job is noticed at once."""
        return min(0.2, max(0.005, seconds / 20))


class _Where(Enum):
    """Where a job's process is."""

    HERE = auto()
    GONE = auto()
    ELSEWHERE = auto()  #: on another machine or in another container, where its number means another process
    COMING = auto()  #: it is being started


@dataclass(frozen=True)
class _Process:
    """A job's process as ``job.json`` tells it."""

    where: _Where
    pid: int | None = None
    birth: str = ""
    host: str = ""
    why_gone: str | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it still exists, and no other has its number."""
        return self.pid is not None and birth(self.pid) == self.birth

    @classmethod
    def of(cls, run: Run) -> _Process:
        """Read it."""
        job = read_job(run) or {}
        if is_copied(job, run):
            return cls(_Where.GONE, why_gone="its directory is a copy, whose job.sh has not been started")
        if not isinstance(job.get("pid"), int):
            young = time.time() - time_of(run.directory) < _START_SECONDS
            return cls(_Where.COMING if young else _Where.GONE, why_gone="hidl was killed before it started the job")
        host = str(job.get("host", _host()))
        found = cls(_Where.HERE, job["pid"], str(job.get("birth")), host)
        same_boot = found.birth.partition(":")[0] == str(birth(os.getpid())).partition(":")[0]
        if (job.get("space", space()) != space()) if same_boot else host != _host():
            return replace(found, where=_Where.ELSEWHERE)
        return found if found.is_alive else replace(found, where=_Where.GONE)


def _state_of_killed(run: Run) -> State:
    """Return in which state a job was to end that was killed before it wrote so itself; LOST if in none."""
    try:
        return State((run.directory / "reason").read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return State.LOST


def _record(run: Run, pid: int) -> None:
    """Write down that process ``pid`` is the run's job, as the job itself does (``local.sh``)."""
    place = {"host": _host(), "space": space(), "of": identify(run.directory)}
    job = {"scheduler": Local.name, "pid": pid, "birth": birth(pid), **place}
    run.write("job", {"schema": "hidl.job/1", **job})


def _environment(run: Run) -> dict[str, str]:
    """Return the job's environment, by which its processes are found."""
    variables = without_shell_options(os.environ)
    return variables | {"HIDL_RUN_ID": run.id, "HIDL_FINDINGS": str(run.directory / "findings.json")}


def _bash() -> str:
    """Return the system's bash: another program of the name may be first on PATH."""
    return shutil.which("bash", path="/usr/bin:/bin") or "bash"


def _host() -> str:
    return os.uname().nodename
