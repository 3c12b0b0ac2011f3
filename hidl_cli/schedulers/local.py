"""Run jobs on this machine, as processes in their own sessions that outlive hidl."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from importlib import resources
from pathlib import Path

from hidl_cli import batch_systems, process
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, SubmitRefused
from hidl_cli.launch.placement import Allocation
from hidl_cli.process import Deferred
from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers.backend import change_time, identify, is_copied, read_job, without_shell_options
from hidl_cli.schedulers.decision import read_status
from hidl_cli.site.schema import Policies


def birth(pid: int) -> str | None:
    """Return a value that identifies a process even if its pid is reused.

    Returns None if the process is a zombie or does not exist.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def pid_namespace() -> str:
    """Return the name of this process's pid namespace, which differs between containers."""
    return str(Path("/proc/self/ns/pid").readlink())


def kill_run(run: str) -> None:
    """Kill all processes whose environment contains the run's id, even those in other sessions."""
    _kill("HIDL_RUN_ID", lambda value: value == run)


def processes_of(run: str) -> Iterator[int]:
    """Yield the pids of the processes that ``kill_run`` would kill."""
    return _with_variable("HIDL_RUN_ID", lambda value: value == run)


def kill_job(directory: Path) -> None:
    """Kill all processes of the job whose run directory is ``directory``.

    Unlike ``kill_run``, this function spares jobs in copies of the directory.
    """

    def is_in_directory(value: str) -> bool:
        with suppress(OSError):
            return Path(value).parent.samefile(directory)
        return False

    _kill("HIDL_FINDINGS", is_in_directory)


def send(pid: int, number: signal.Signals, matches: Callable[[], bool]) -> None:
    """Send a signal to a process if ``matches()`` returns True and the process belongs to this user.

    Even root only signals its own processes. The process is opened before the check, so that a new process with the
    same pid cannot receive the signal.
    """
    with suppress(OSError):
        process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _user(pid) == os.getuid() and matches():
                _send(process, pid, number)
        finally:
            os.close(process)


def _send(process: int, pid: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(process, number)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSYS:
            raise
        os.kill(pid, number)  # Linux before 5.1


def _user(pid: int) -> int | None:
    """Return a process's real uid, which setuid programs keep."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1])
    return None


def _kill(variable: str, matches: Callable[[str], bool]) -> None:
    for pid in _with_variable(variable, matches):
        send(pid, signal.SIGKILL, lambda pid=pid: _has(pid, variable, matches))  # type: ignore[misc]


def _with_variable(variable: str, matches: Callable[[str], bool]) -> Iterator[int]:
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        if _has(pid, variable, matches) and _user(pid) == os.getuid():
            yield pid


def _has(pid: int, variable: str, matches: Callable[[str], bool]) -> bool:
    prefix = f"{variable}=".encode()
    with suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        values = [each for each in environment if each.startswith(prefix)]
        return bool(values) and matches(os.fsdecode(values[-1].removeprefix(prefix)))
    return False


_GRACE_SECONDS = 10.0
#: A run that has no process yet counts as starting for this many seconds after its directory was created.
_START_SECONDS = 60.0


class Local:
    """Runs job scripts on this machine immediately.

    If ``keeps_job`` is set, the script runs as part of the batch job that surrounds this process and inherits the job's
    variables. By default, these variables are removed, because frameworks would mistake the ranks for ranks of that
    job.
    """

    name = "local"
    keeps_job = False
    submits_with: str | None = None
    directory_variable: str | None = None

    @property
    def functions(self) -> str:
        return resources.files("hidl_cli.schedulers").joinpath("local.sh").read_text(encoding="utf-8")

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        return ()

    def submit(self, run: Run) -> None:
        environment = self._environment(run)
        try:
            child = process.start_detached(
                [_bash(), run.script], cwd=run.directory, env=environment, stdout=run.stdout, stderr=run.stderr
            )
        except OSError as error:
            raise SubmitRefused(
                f"the job script could not be started: {error}", hint="check that bash is installed"
            ) from error
        _record(run, child.pid)

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        return (_bash(), "./job.sh")

    def attend(self, run: Run, header: Sequence[str], deferred: Deferred, *, terminal: bool) -> int:
        return process.attend(
            self.interactive(header, run.id, terminal=terminal),
            cwd=run.directory,
            env=self._environment(run),
            deferred=deferred,
            started=lambda pid: _record(run, pid),
        )

    def release(self, run: Run) -> None:
        kill_job(run.directory)

    def _environment(self, run: Run) -> dict[str, str]:
        """Return the job's environment, with the variables that identify its processes."""
        variables = without_shell_options(os.environ)
        if not self.keeps_job:
            dropped, kept = _variables_of_jobs()
            variables = {name: value for name, value in variables.items() if name in kept or not dropped.match(name)}
        return variables | {"HIDL_RUN_ID": run.id, "HIDL_FINDINGS": str(run.directory / "findings.json")}

    def adopt(self, run: Run, job: str, directory: str) -> None:
        _record(run, int(job))  # the id of a local job is its pid

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        return [self._poll(run) for run in runs]

    def _poll(self, run: Run) -> Status:
        # The job enforces its time limit itself. Its process is checked before the status is read, so that a job that
        # ends in between is not reported as lost.
        process = _Process.of(run)
        status = read_status(run)
        if status.state.is_final:
            return status
        if process.where is _Where.ELSEWHERE:
            return replace(status, reason=f"on {process.host}; its process is not visible on {_host()}")
        if process.where is _Where.GONE:
            return run.end_as(State.LOST if process.why_gone else _state_of_killed(run), reason=process.why_gone)
        return status

    def cancel(self, run: Run, *, state: State) -> bool:
        """Cancel the run. Raises ``HidlError`` if its job is on another machine."""
        process = _Process.of(run)
        if read_status(run).state.is_final:
            kill_job(run.directory)  # processes left behind by a killed job
            return False
        if process.where is _Where.ELSEWHERE:
            raise HidlError(
                f"run {run.id} was started on {process.host}; this is {_host()}",
                hint=f"on {process.host}, run: hidl cancel {run.id}",
            )
        with suppress(OSError):  # if the disk is full, the job itself records CANCELLED
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
        # Polling only reads a file, so it can be done frequently.
        return min(0.2, max(0.005, seconds / 20))


class InAllocation(Local):
    """Runs job scripts in the batch allocation that surrounds this process.

    ``functions`` returns the batch system's functions, but the job is a process on this machine.
    """

    keeps_job = True

    def __init__(self, name: str = Local.name, functions: str = "") -> None:
        self.name = name
        self._functions = functions

    @property
    def functions(self) -> str:
        own = re.sub(r"^list_hosts\(\) \{.*?^\}\n", "", super().functions, count=1, flags=re.MULTILINE | re.DOTALL)
        return f"{self._functions}\n{own}"


class _Where(Enum):
    """The location of a job's process."""

    HERE = auto()
    GONE = auto()
    ELSEWHERE = auto()  #: on another machine or in another container
    STARTING = auto()


@dataclass(frozen=True)
class _Process:
    """A job's process, according to ``job.json``."""

    where: _Where
    pid: int | None = None
    birth: str = ""
    host: str = ""
    why_gone: str | None = None

    @property
    def is_alive(self) -> bool:
        """True if the process still exists."""
        return self.pid is not None and birth(self.pid) == self.birth

    @classmethod
    def of(cls, run: Run) -> _Process:
        """Read a run's process from its ``job.json``."""
        job = read_job(run) or {}
        if is_copied(job, run):
            return cls(_Where.GONE, why_gone="its directory is a copy, and its job.sh has not been started")
        if not isinstance(job.get("pid"), int):
            is_new = time.time() - change_time(run.directory) < _START_SECONDS
            where = _Where.STARTING if is_new else _Where.GONE
            return cls(where, why_gone="hidl was killed before it started the job")
        host = str(job.get("host", _host()))
        found = cls(_Where.HERE, job["pid"], str(job.get("birth")), host)
        same_boot = found.birth.partition(":")[0] == str(birth(os.getpid())).partition(":")[0]
        if (job.get("space", pid_namespace()) != pid_namespace()) if same_boot else host != _host():
            return replace(found, where=_Where.ELSEWHERE)
        return found if found.is_alive else replace(found, where=_Where.GONE)


def _state_of_killed(run: Run) -> State:
    """Return the requested state of a job that was killed before it recorded its end, or LOST if none was requested."""
    try:
        return State((run.directory / "reason").read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return State.LOST


def _record(run: Run, pid: int) -> None:
    """Write ``job.json`` for a process, with the contents that the job itself would write (``local.sh``)."""
    job = {"scheduler": Local.name, "pid": pid, "birth": birth(pid), "host": _host(), "space": pid_namespace()}
    run.write("job", {"schema": "hidl.job/1", **job, "of": identify(run.directory)})


#: Variables set by launchers and process-management interfaces. Open MPI options set by the user (``OMPI_MCA_btl``) are
#: not included.
_OF_LAUNCHERS = (
    "PMI_",
    "PMIX_",
    "OMPI_COMM_WORLD_",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_APP_CTX_NUM_PROCS",
    "OMPI_FIRST_RANKS",
    "OMPI_MCA_ess",
    "OMPI_MCA_orte_",
    "MV2_COMM_WORLD_",
    "MPI_LOCAL",
    "JSM_",
    "PALS_",
    "HYDRA_",
)


def _variables_of_jobs() -> tuple[re.Pattern[str], set[str]]:
    """Return a pattern for variables that describe an enclosing job, and the names of variables to keep anyway."""
    systems = list(batch_systems.systems())
    prefixes = [*_OF_LAUNCHERS, *(prefix for system in systems for prefix in system.variables)]
    return re.compile("|".join(map(re.escape, prefixes))), {name for system in systems for name in system.configuration}


def _bash() -> str:
    """Return the system's bash, because the first one on PATH may be another program."""
    return shutil.which("bash", path="/usr/bin:/bin") or "bash"


def _host() -> str:
    return os.uname().nodename
