"""A batch system that does its worst: jobs, and what their scripts write, on a clock that tests turn."""

from __future__ import annotations

import errno
import json
from collections.abc import Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import localtime, strftime
from time import time as real_time
from typing import Any

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import HidlError
from hidl_cli.launch.placement import Allocation
from hidl_cli.record import Run, State
from hidl_cli.schedulers.backend import Backend, NoAnswer, Receipt, Refused
from hidl_cli.schedulers.decision import Job, StartBlocker
from hidl_cli.schedulers.lsf import LsfBackend
from hidl_cli.site.schema import Policies

LIVE = (State.PENDING, State.RUNNING)


class Killed(BaseException):
    """SIGKILL to hidl."""


@dataclass
class SimulatedJob:
    """A job as it really is; ``settling``: its script is over, and this is what becomes of it then."""

    id: int
    directory: Path
    state: State = State.PENDING
    by_itself: bool = True
    started: float | None = None
    ended: float | None = None
    never_starts: bool = False
    settling: State | None = None
    hidden: bool = False  # from the answers of the controller, for a moment or for longer
    said: str | None = None  # the state that the script of the last attempt wrote, as far as it arrived

    @property
    def lives(self) -> bool:
        """Whether it waits, runs or is being cleaned up."""
        return self.state in LIVE


@dataclass
class Adversary:
    """One cluster, and all that can go wrong around it."""

    now: float = field(default_factory=real_time)
    jobs: dict[int, SimulatedJob] = field(default_factory=dict)
    records: list[SimulatedJob] = field(default_factory=list)
    next_id: int = 100
    up: bool = True
    records_answer: bool = True
    is_cut: bool = False  # a listing lacks its second half, and looks complete
    answer_to_sbatch: str = "id"  # or "taken, no answer", "no answer", "refused"
    kill_is_refused: bool = False
    skew: float = 0.0  # of the nodes' clocks, in seconds
    late: list[tuple[SimulatedJob, str, str]] = field(default_factory=list)  # what scripts wrote, and is on its way
    is_late: bool = False
    full: set[Path] = field(default_factory=set)  # directories on a full disk
    steps_to_live: int | None = None  # until hidl is killed
    kills: list[int] = field(default_factory=list)
    saved: dict[int, SimulatedJob] = field(default_factory=dict)

    # ---- the clock, as the module ``time``

    def time(self) -> float:
        """Seconds since the epoch."""
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        """Meanwhile jobs that were told to end do so."""
        self.now += max(seconds, 0.01)
        for job in list(self.jobs.values()):
            if job.settling is not None and job.id in self.kills:
                self.settle(job)

    strftime = staticmethod(strftime)
    localtime = staticmethod(localtime)

    # ---- what hidl does

    def step(self) -> None:
        """One step of hidl, which may be its last."""
        if self.steps_to_live is not None:
            self.steps_to_live -= 1
            if self.steps_to_live < 0:
                raise Killed

    def may_write(self, path: Path) -> None:
        """Raise if the disk is full there."""
        self.step()
        if path.parent in self.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def ask(self) -> None:
        """Raise if the controller is away."""
        self.step()
        self.now += 0.01
        if not self.up:
            raise NoAnswer("the controller does not answer")

    # ---- what jobs and the cluster do

    def take(self, directory: Path, *, id: int | None = None) -> SimulatedJob:
        """A job is submitted there."""
        if id is None:
            while self.next_id in self.jobs:
                self.next_id += 1
            id = self.next_id
            self.next_id += 1
        job = self.jobs[id] = SimulatedJob(id, directory)
        return job

    def start(self, job: SimulatedJob) -> None:
        """Its script begins."""
        job.state, job.started, job.ended, job.said = State.RUNNING, self.now, None, None
        status = job.directory / "status.json"
        if status.exists() and f'"job": "{job.id}"' not in status.read_text():
            (job.directory / "reason").unlink(missing_ok=True)
        self.write(job, "RUNNING")

    def script_ends(self, job: SimulatedJob, word: str | None, then: State, *, by_itself: bool) -> None:
        """Its script ends, with a last word or none; the cluster cleans up, and then says what became of it."""
        if word is not None:
            reason = job.directory / "reason"
            self.write(job, reason.read_text().strip() if word == "CANCELLED" and reason.exists() else word)
        job.settling, job.by_itself = then, by_itself

    def settle(self, job: SimulatedJob) -> None:
        """The clean-up is over."""
        assert job.settling is not None
        job.state, job.settling = job.settling, None
        if job.state is State.PENDING:
            job.started = None
        else:
            job.ended = self.now
            self.records.append(replace(job))

    def kill(self, id: int) -> None:
        """``scancel``."""
        self.kills.append(id)
        job = self.jobs.get(id)
        if job is None or not job.lives:
            return
        if job.settling is not None:
            job.settling, job.by_itself = State.CANCELLED, False
        elif job.state is State.PENDING:
            job.settling, job.by_itself = State.CANCELLED, False
            self.settle(job)
        else:
            self.script_ends(job, "CANCELLED", State.CANCELLED, by_itself=False)

    def write(self, job: SimulatedJob, state: str) -> None:
        """The script writes its status, by its node's clock."""
        ended = self.now + self.skew if state != "RUNNING" else None
        code = {"RUNNING": None, "COMPLETED": 0, "FAILED": 3}.get(state, 143)
        started = (job.started or self.now) + self.skew
        word = {"job": str(job.id), "state": state, "exit_status": code, "started": started, "ended": ended}
        text = json.dumps({"schema": "hidl.status/1", **word, "step": 1, "steps": 1, "hosts": ["n1"]})
        self.late.append((job, state, text))
        if not self.is_late:
            self.arrive()

    def arrive(self) -> None:
        """What was on its way through the file system is here."""
        for job, state, text in self.late:
            if job.directory not in self.full:
                job.said = state
                (job.directory / "status.json").write_text(text)
        self.late.clear()

    def save(self) -> None:
        """The controller saves its state."""
        self.saved = deepcopy(self.jobs)

    def restore(self) -> None:
        """It is killed and comes back with the state that it saved: later jobs are gone, without a word.

        Their processes are ended on the nodes. It goes on counting from where it was: numbers come again.
        """
        gone = [job for job in self.jobs.values() if job.id not in self.saved]
        for job in gone:
            del self.jobs[job.id]
        self.next_id = min([self.next_id, *(job.id for job in gone)])


class Hostile(Backend):
    """The adversary, as hidl's core calls a batch system."""

    traits = SYSTEMS["slurm"]
    grace_seconds = 15.0
    first_interval = 0.5
    end_seconds = 90.0

    def __init__(self, world: Adversary) -> None:
        self.world = world

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Backend``."""
        return ()

    def this_cluster(self) -> str:
        """See ``Backend``."""
        return "hostile"

    def ping(self) -> None:
        """See ``Backend``."""
        self.world.ask()

    def submit(self, run: Run) -> Receipt | None:
        """See ``Backend``."""
        self.world.ask()
        answer = self.world.answer_to_sbatch
        if answer == "refused":
            raise Refused("no", hint="ask for less")
        if answer == "no answer":
            raise NoAnswer("Socket timed out")
        job = self.world.take(run.directory)
        self.world.step()
        if answer == "taken, no answer":
            raise NoAnswer("Socket timed out")
        return Receipt(str(job.id))

    def query(self, cluster: str | None) -> Sequence[str]:
        """See ``Backend``."""
        self.world.ask()
        listed = [job for job in self.world.jobs.values() if not job.hidden]
        shown = listed[: len(listed) // 2] if self.world.is_cut else listed
        return [json.dumps(asdict(job), default=_plain) for job in shown]

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        """See ``Backend``."""
        self.world.ask()
        named = [job for job in self.world.jobs.values() if str(job.id) == id and not job.hidden]
        return self.parse(json.dumps(asdict(job), default=_plain) for job in named)[0] if named else None

    def parse(self, lines: Iterable[str]) -> list[Job]:
        """See ``Backend``."""
        return [_job(json.loads(line)) for line in lines]

    def kill(self, id: str, cluster: str | None) -> None:
        """See ``Backend``."""
        self.world.ask()
        if self.world.kill_is_refused:
            raise HidlError(f"job {id} could not be cancelled: Access denied")
        self.world.kill(int(id))
        self.world.step()

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        """See ``Backend``."""
        self.world.ask()
        if not self.world.records_answer:
            raise NoAnswer("slurmdbd does not answer")
        last = {job.id: job for job in self.world.records}
        known = [job for job in last.values() if str(job.id) in ids or None in ids]
        return self.parse(json.dumps(asdict(job), default=_plain) for job in known)

    def never_starts(self, job: Job) -> StartBlocker | None:
        """See ``Backend``."""
        return StartBlocker("BadConstraints") if job.reason == "BadConstraints" else None


class HostileLsf(Hostile):
    """The adversary as LSF: jobs are known by their description, without their start; records are found by number."""

    traits = SYSTEMS["lsf"]
    grace_seconds = LsfBackend.grace_seconds
    first_interval = LsfBackend.first_interval
    end_seconds = LsfBackend.end_seconds
    belongs_to = LsfBackend.belongs_to

    def parse(self, lines: Iterable[str]) -> list[Job]:
        """See ``Backend``."""
        return [replace(job, mark=Path(job.mark).name, started=None) for job in super().parse(lines)]

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        """See ``Backend``."""
        return super().history([id for id in ids if id], since, cluster)


def _plain(value: Any) -> str:
    return value.value if isinstance(value, State) else str(value)


def _job(job: dict[str, Any]) -> Job:
    state = State(job["state"])
    final = "" if job["by_itself"] else state.value
    return Job(
        id=str(job["id"]),
        state=state,
        word="COMPLETING" if job["settling"] else state.value,
        mark=job["directory"],
        reason="BadConstraints" if state is State.PENDING and job["never_starts"] else final if state.is_final else "",
        ended=job["ended"],
        by_itself=job["by_itself"],
        started=job["started"],
        ending=bool(job["settling"]),
    )
