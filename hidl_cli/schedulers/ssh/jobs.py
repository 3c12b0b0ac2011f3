"""Records of jobs that run through ssh, and the ``# ssh:`` lines in job scripts, which request hosts.

Supervisors keep the records in a directory on this machine. The lines look like ``hidl run`` options.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hidl_cli import paths
from hidl_cli.documents import write_json
from hidl_cli.errors import InvalidInput
from hidl_cli.launch.hosts import is_host_name
from hidl_cli.launch.placement import Allocation
from hidl_cli.record import State
from hidl_cli.schedulers.decision import Job
from hidl_cli.schedulers.local import birth, processes_of
from hidl_cli.site.schema import Policies

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
            record = _read(file)
            if record.ended is None and not record.is_alive:
                record = _read(file)  # the job may have ended in between
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


def _read(file: Path) -> JobRecord:
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
