"""Run jobs on hosts without a scheduler. A supervisor runs the job script here, and ranks are started through ssh.

Supervisors keep the records of jobs in a directory on this machine. The ``# ssh:`` lines in job scripts request hosts
and look like ``hidl run`` options.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hidl_cli import paths, process
from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.documents import write_json
from hidl_cli.errors import InvalidInput
from hidl_cli.launch.hosts import is_host_name
from hidl_cli.launch.placement import Allocation
from hidl_cli.record import Run, State
from hidl_cli.schedulers.backend import Backend, NotSubmitted, Programs, Receipt, Refused
from hidl_cli.schedulers.decision import Job
from hidl_cli.schedulers.local import birth, kill_run, processes_of, send
from hidl_cli.schedulers.ssh.guards import check_hosts
from hidl_cli.site.schema import Policies

#: File for output from the supervisor and its connections.
OUTPUT = "ssh.log"
_START_SECONDS = 30.0
_SUPERVISOR = "hidl_cli.schedulers.ssh.supervise"
#: Supervisor option that runs the script in the supervisor's terminal.
ATTENDED = "--attended"
PROGRAMS = Programs(
    # A launcher that finds another scheduler's variables would get its hosts from that scheduler.
    dropped=("SLURM_", "LSB_", "PBS_", "FLUX_", "PMI_", "PMIX_", "HYDRA_", "HIDL_SSH_JOB"),
    kept=frozenset({"SLURM_CONF", "HYDRA_IFACE", "HYDRA_LAUNCHER_EXEC"}),
    unreachable=re.compile(r"(?!)"),
)


class SshBackend(Backend):
    """Hosts that are reached through ssh. A job's id is the pid of its supervisor on this machine."""

    traits = SYSTEMS["ssh"]
    programs = PROGRAMS
    grace_seconds = 3.0
    first_interval = 0.2

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        return request_lines(allocation, policies)

    def this_cluster(self) -> str | None:
        return here()

    def ping(self) -> None:
        """Do nothing: jobs are managed on this machine, and ``submit`` checks the hosts."""

    def submit(self, run: Run) -> Receipt | None:
        """Start the supervisor. Raises ``MissingPrecondition`` listing all hosts that cannot be used."""
        self.check(run)
        log = run.directory / OUTPUT
        child = process.start_detached(
            [sys.executable, "-m", _SUPERVISOR, run.script],
            cwd=run.directory,
            env=PROGRAMS.environment(),
            stdout=log,
            stderr=log,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not any(record.id == str(child.pid) for record in records()):
            if child.poll() is not None or time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    child.kill()
                raise NotSubmitted(f"the job's supervisor did not start; see {log}")
            time.sleep(0.02)
        return Receipt(str(child.pid))

    def check(self, run: Run) -> None:
        """Check the hosts. Raises ``MissingPrecondition`` listing all hosts that cannot be used."""
        try:
            request = read_request(run.script.read_text(encoding="utf-8"))
        except InvalidInput as invalid:
            raise Refused(invalid.message, hint=invalid.hint or "") from invalid
        check_hosts(request.hosts, run, shared=request.shared)

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        return (sys.executable, "-m", _SUPERVISOR, ATTENDED, "./job.sh")

    def query(self, cluster: str | None) -> Sequence[str]:
        return format_lines(records())

    def parse(self, lines: Iterable[str]) -> list[Job]:
        return parse(lines)

    def kill(self, id: str, cluster: str | None) -> None:
        for record in records():
            if record.id == id and record.is_alive:
                send(int(id), signal.SIGTERM, lambda record=record: record.is_alive)  # type: ignore[misc]
            elif record.id == id and record.ended is None:
                kill_run(record.run)


BACKEND = SshBackend


#: Seconds after a job's end until its record is removed.
_KEPT_SECONDS = 7 * 86400.0
KILLED = "its supervisor was killed"


@dataclass(frozen=True)
class JobRecord:
    """The record of a job.

    Attributes:
        id: Pid of the supervisor.
        birth: Value of ``local.birth`` for the supervisor, which identifies it even if its pid is reused.
        run: Id of the run, which is in the environment of all of the job's processes.
        reason: Why the job is waiting, or how it ended.
        ended: Time when the job ended, in seconds since the epoch.
        by_itself: False if the job was ended by a user or administrator.
    """

    id: str
    birth: str | None
    run: str
    directory: str
    state: State
    reason: str = ""
    ended: float | None = None
    by_itself: bool = True

    @property
    def is_alive(self) -> bool:
        """True if the supervisor is running."""
        return self.birth is not None and birth(int(self.id)) == self.birth

    def write(self) -> None:
        """Write the record to its file."""
        write_json(_place() / f"{Path(self.directory).name}.json", asdict(self))


def here() -> str:
    """Return the name of this machine."""
    return os.uname().nodename


def records() -> list[JobRecord]:
    """Read all records. A job whose supervisor was killed ends once none of its processes are left on this machine."""
    found = []
    for file in sorted(_place().glob("*.json")):
        with suppress(OSError, ValueError, TypeError, KeyError):
            record = _read_record(file)
            if record.ended is None and not record.is_alive:
                record = _read_record(file)  # the job may have ended in between
                if record.ended is None:
                    record = _without_supervisor(record)
            elif record.ended is not None and time.time() - record.ended > _KEPT_SECONDS:
                file.unlink()
            found.append(record)
    return found


def format_lines(found: Iterable[JobRecord]) -> list[str]:
    """Format each record as a line for ``parse``."""
    return [json.dumps(asdict(record)) for record in found]


def parse(lines: Iterable[str]) -> list[Job]:
    """Parse lines written by ``format_lines``."""
    return [_job(json.loads(line)) for line in lines]


def _without_supervisor(record: JobRecord) -> JobRecord:
    if left := sum(1 for _ in processes_of(record.run)):
        reason = f"{KILLED}; {left} process(es) left (hidl cancel ends them)"
        return replace(record, state=State.RUNNING, reason=reason)
    record = replace(record, state=State.LOST, reason=KILLED, ended=time.time(), by_itself=False)
    record.write()
    return record


def _read_record(file: Path) -> JobRecord:
    document = json.loads(file.read_text(encoding="utf-8"))
    return JobRecord(**(document | {"state": State(document["state"])}))


def _job(job: dict[str, object]) -> Job:
    ended = job["ended"]
    return Job(
        str(job["id"]),
        State(job["state"]),
        str(job["state"]),
        str(job["directory"]),
        str(job["reason"]),
        float(ended) if isinstance(ended, int | float) else None,
        by_itself=bool(job["by_itself"]),
    )


def _place() -> Path:
    return paths.user_state() / "ssh" / f"{here()}.jobs"


_LINE = re.compile(r"^# ssh: --(hosts|time|share-hosts|run)(?:=(.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class HostsRequest:
    """The hosts that a job script requests.

    Attributes:
        seconds: Time limit in seconds, or None if there is none.
        shared: True if the job does not lock the hosts.
        run: Id of the run whose job script this script starts, or None if this script is itself a run's job script.
    """

    hosts: tuple[str, ...]
    seconds: float | None
    shared: bool
    run: str | None = None


def request_lines(allocation: Allocation, policies: Policies) -> tuple[str, ...]:
    """Return the lines that request ``allocation``. Raises ``InvalidInput`` for options that require a batch system."""
    for what in ("account", "qos", "constraint", "reservation"):
        value = getattr(allocation, what)
        if value is not None:
            raise InvalidInput(
                f"hosts without a scheduler have no {what}, but {value!r} is requested", hint=f"omit --{what}"
            )
    limit = allocation.time_limit
    lines = [
        f"--hosts={','.join(allocation.hosts)}",
        *([] if limit is None else [f"--time={math.ceil(limit)}"]),
        *(["--share-hosts"] if allocation.share_hosts else []),
    ]
    return tuple(f"# ssh: {line}" for line in lines)


def started_run(run: str) -> str:
    """Return the header line for a script that starts the job script of a run in another directory."""
    return f"# ssh: --run={run}"


def read_request(script: str) -> HostsRequest:
    """Parse a job script's header. Raises ``InvalidInput`` if a line is invalid or the hosts are missing."""
    given: dict[str, str] = {}
    for name, value in _LINE.findall(script):
        given.setdefault(name, value)
    hosts = tuple(given.get("hosts", "").split(","))
    time = given.get("time")
    if not all(map(is_host_name, hosts)) or (time is not None and not time.isdecimal()):
        raise InvalidInput("the job script contains no valid hosts", hint="add a line `# ssh: --hosts=HOST,HOST`")
    return HostsRequest(hosts, None if time is None else float(time), "share-hosts" in given, given.get("run"))
