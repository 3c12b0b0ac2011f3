"""The directory of a stand-in scheduler, and the jobs in it."""

from __future__ import annotations

import fcntl
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from hidl_cli.documents import read_json, write_json, write_text
from hidl_twin.batch import settings as settings_
from hidl_twin.batch.settings import Settings

#: States are LSF's words: PEND, RUN, DONE (status 0), EXIT. Each stand-in prints its own.
FINAL = ("DONE", "EXIT")
#: Why a job ended, also in LSF's words, which tell all cases apart.
REASONS = {
    "TERM_OWNER": "TERM_OWNER: job killed by owner",
    "TERM_ADMIN": "TERM_ADMIN: job killed by root or LSF administrator",
    "TERM_RUNLIMIT": "TERM_RUNLIMIT: job killed after reaching LSF run time limit",
    "TERM_MEMLIMIT": "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit",
    "TERM_CSM_ALLOC": "TERM_CSM_ALLOC: job killed by LSF due to CSM allocation API error",
}


@dataclass(frozen=True)
class Job:
    """A job. Times are seconds since the epoch.

    ``options``: what the submission was given, by the option. ``run_limit``: minutes; None: no limit. ``hosts``: those
    that it was given, the launch host not among them; ``slots``: how many these have together, 0 before it has them.
    ``exit_reason``: the key of ``REASONS``, else text; empty: it ended by itself.
    """

    id: str
    user: str
    options: Mapping[str, str]
    cwd: str
    from_host: str
    submitted: float
    queue: str = ""
    nodes: int = 1
    run_limit: float | None = None
    stat: str = "PEND"
    pend_reason: str = "New job is waiting for scheduling"
    slots: int = 0
    hosts: tuple[str, ...] = ()
    launch_host: str | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: str = ""
    exit_reason: str = ""

    @property
    def exit_words(self) -> str:
        """``exit_reason`` in LSF's words."""
        return REASONS.get(self.exit_reason, self.exit_reason)

    @property
    def first_host(self) -> str:
        """Where its script runs."""
        return self.launch_host or self.hosts[0]


class Store:
    """The directory of one scheduler."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __getitem__(self, name: str) -> Path:
        return self.directory / name

    @property
    def settings(self) -> Settings:
        return settings_.load(self["settings.json"])

    def job_directory(self, id: str) -> Path:
        return self["jobs"] / id

    # ---- jobs

    def jobs(self) -> list[Job]:
        """All jobs, in the order of their submission."""
        found = [entry.name for entry in self["jobs"].iterdir()] if self["jobs"].is_dir() else []
        ids = sorted((name for name in found if name.isdecimal()), key=int)
        return [job for id in ids if (job := self.job(id)) is not None]

    def job(self, id: str) -> Job | None:
        """The job of that number; None where there is none."""
        request, state = self.job_directory(id) / "request.json", self.job_directory(id) / "state.json"
        try:
            document: dict[str, Any] = read_json(request) | (read_json(state) if state.is_file() else {})
        except FileNotFoundError:
            return None
        return Job(**(document | {"hosts": tuple(document.get("hosts", ()))}))

    def visible(self, job: Job) -> bool:
        """Whether the scheduler still shows the job."""
        return job.ended is None or time.time() - job.ended <= self.settings.clean_period

    def enter(self, job: Job, script: str, environment: Mapping[str, str], ids: tuple[int, int] = (101, 1)) -> Job:
        """Take a job and number it; the daemon sees it from now on. ``ids``: the first number, and the distance."""
        with self.locked():
            file = self["number"]
            id = str(int(file.read_text()) + ids[1]) if file.is_file() else str(ids[0])
            write_text(file, id)
        job = replace(job, id=id)
        directory = self.job_directory(id)
        directory.mkdir(parents=True)
        write_text(directory / "command", script, mode=0o755)
        write_text(directory / "environment.json", json.dumps(dict(environment)), mode=0o600)
        self.write_request(job)
        return job

    def write_request(self, job: Job) -> None:
        """Write what was asked for: the part of a job that submission (and bmod) makes."""
        kept = ("id", "user", "options", "cwd", "from_host", "submitted", "queue", "nodes", "run_limit")
        document = {name: value for name, value in asdict(job).items() if name in kept}
        write_json(self.job_directory(job.id) / "request.json", document)

    def write_state(self, job: Job) -> None:
        """Write how the job fares: the part that the daemon makes."""
        kept = ("stat", "pend_reason", "slots", "hosts", "launch_host", "started", "ended", "exit_code", "exit_reason")
        document = {name: value for name, value in asdict(job).items() if name in kept}
        write_json(self.job_directory(job.id) / "state.json", document)

    def environment(self, id: str) -> dict[str, str]:
        """What the job's environment was where it was submitted."""
        document = read_json(self.job_directory(id) / "environment.json")
        return {str(name): str(value) for name, value in document.items()}

    def order(self, id: str) -> str:
        """Why the job is to end, by the word of ``REASONS``; empty: it is not."""
        file = self.job_directory(id) / "order"
        return file.read_text(encoding="ascii") if file.is_file() else ""

    def give_order(self, id: str, reason: str) -> None:
        """Have the job ended."""
        write_text(self.job_directory(id) / "order", reason)

    # ---- commands and the daemon

    def called(self, command: str, arguments: Sequence[str]) -> None:
        """Note the call of a command."""
        with self["calls"].open("a", encoding="utf-8") as file:
            file.write(shlex.join([command, *arguments]) + "\n")

    def answers(self, command: str) -> bool:
        """Whether the daemon answers that command."""
        return self.settings.down not in (True, command) and self.is_served()

    def is_served(self) -> bool:
        """Whether the daemon lives, on whichever host."""
        try:
            with self["daemon.lock"].open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @contextmanager
    def locked(self, name: str = "lock") -> Iterator[None]:
        """Wait for the lock, and hold it."""
        with self[name].open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def refuse(words: str, status: int = 255) -> NoReturn:
    """End a command with these words; 255 is LSF's status for whatever it does not do."""
    print(words, file=sys.stderr)
    sys.exit(status)
