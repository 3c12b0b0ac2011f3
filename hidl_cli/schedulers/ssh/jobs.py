"""Jobs over ssh: a record for each, which its supervisor keeps, in a directory of this machine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hidl_cli import paths
from hidl_cli.documents import write_json
from hidl_cli.record.run import State
from hidl_cli.schedulers.decision import Job
from hidl_cli.schedulers.local import birth, of_run

#: Records of jobs that ended so many seconds ago are removed.
_KEPT_SECONDS = 7 * 86400.0
KILLED = "its supervisor was killed"


@dataclass(frozen=True)
class JobRecord:
    """A job: the process ``id`` supervises it (``birth``: which of that number), its processes carry the id ``run``.

    ``ended``: seconds since the epoch. ``by_itself``: see ``decision.Job``.
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
        """Whether its supervisor lives."""
        return self.birth is not None and birth(int(self.id)) == self.birth

    def write(self) -> None:
        """Write it."""
        write_json(_place() / f"{Path(self.directory).name}.json", asdict(self))


def here() -> str:
    """Return the name of this machine, where its jobs' supervisors are."""
    return os.uname().nodename


def records() -> list[JobRecord]:
    """Read the records; a job whose supervisor was killed has ended when none of its processes is left here."""
    found = []
    for file in sorted(_place().glob("*.json")):
        with suppress(OSError, ValueError, TypeError, KeyError):
            record = _read(file)
            if record.ended is None and not record.is_alive:
                record = _read(file)  # again: it may have ended in between
                if record.ended is None:
                    record = _without_supervisor(record)
            elif record.ended is not None and time.time() - record.ended > _KEPT_SECONDS:
                file.unlink()
            found.append(record)
    return found


def format_lines(found: Iterable[JobRecord]) -> list[str]:
    """Return a line for each record; ``parse`` reads them."""
    return [json.dumps(asdict(record)) for record in found]


def parse(lines: Iterable[str]) -> list[Job]:
    """Return the jobs of the lines."""
    return [_job(json.loads(line)) for line in lines]


def _without_supervisor(record: JobRecord) -> JobRecord:
    if left := sum(1 for _ in of_run(record.run)):
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
