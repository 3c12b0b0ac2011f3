"""The life of runs under a batch system that does its worst: whatever happens, in whatever order, these things hold.

- Only a run's own job is ever cancelled, by ``cancel`` alone, or because it would never start.
- No end is written down while the job lives.
- A look changes nothing but the run's own directory, and the fault of one run touches no other.
- When all is over, each run has the end that its job had.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from hidl_cli import paths
from hidl_cli.documents import write_json
from hidl_cli.errors import HidlError
from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers import backend as ticket
from hidl_cli.schedulers import batch, decision, poller
from hidl_cli.schedulers import poller as query_cache
from hidl_cli.schedulers.batch import BatchScheduler
from tests.schedulers.adversary import Adversary, Hostile, HostileLsf, Killed, SimulatedJob

#: What a scheduler may do to a job, and what its script may write of it.
ENDS = [
    ("COMPLETED", State.COMPLETED, True),
    ("FAILED", State.FAILED, True),
    ("CANCELLED", State.TIMEOUT, False),
    (None, State.TIMEOUT, False),
    ("CANCELLED", State.PREEMPTED, False),
    (None, State.NODE_FAIL, False),
    ("FAILED", State.OUT_OF_MEMORY, False),
    ("CANCELLED", State.CANCELLED, False),
    (None, State.FAILED, True),
]

#: What may happen to a job, and to which.
CLUSTER: dict[str, Callable[[SimulatedJob], bool]] = {
    "start": lambda job: job.state is State.PENDING and not job.never_starts,
    "end": lambda job: job.state is State.RUNNING and job.settling is None,
    "clean up": lambda job: job.settling is not None,
    "never start": lambda job: job.state is State.PENDING,
    "hide": lambda job: job.lives,
    "forget": lambda job: job.state.is_final,
}


class LifeOfRuns(RuleBasedStateMachine):
    """Runs of one user, two hidls on two hosts, and the adversary."""

    runs = Bundle("runs")
    backend = Hostile

    @initialize()
    def begin(self) -> None:
        """Make the world."""
        self.place = Path(tempfile.mkdtemp(prefix="hidl-model-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.world = Adversary()
        self.stack = ExitStack()
        self.stack.callback(shutil.rmtree, self.place, ignore_errors=True)
        for module in (batch, decision, poller, query_cache):
            self.stack.enter_context(mock.patch.object(module, "time", self.world))
        for module, name in [(query_cache, "write_json"), (batch, "write_text")]:
            self.stack.enter_context(mock.patch.object(module, name, self._writer(getattr(module, name))))
        self.stack.enter_context(mock.patch("hidl_cli.record.write_json", self._writer(write_json)))
        self.stack.enter_context(mock.patch.object(paths, "user_state", return_value=self.place / "state"))
        self.made: dict[Path, float] = {}
        self.stack.enter_context(mock.patch.object(ticket, "change_time", self.made.__getitem__))
        self.hidls = [self._hidl(), self._hidl()]
        self.copied: dict[Path, Status] = {}  # what a copy says before its job begins
        self.cancelled: set[Path] = set()
        self.given_up: set[Path] = set()  # jobs that vanished without a word, or were never known
        self.number = 0

    def _writer(self, write: Callable[..., None]) -> Callable[..., None]:
        def checked(path: Path, *content: Any, **options: Any) -> None:
            self.world.may_write(path)
            write(path, *content, **options)

        return checked

    def _hidl(self) -> BatchScheduler:
        return BatchScheduler(self.backend(self.world))

    @contextmanager
    def _using(self, hidl: int) -> Iterator[BatchScheduler]:
        """One of the hidls, which may be killed: then another takes its place. No job but these runs' may be ended."""
        before = list(self.world.kills)
        try:
            yield self.hidls[hidl]
        except Killed:
            self.hidls[hidl] = self._hidl()
        finally:
            self.world.steps_to_live = None
            self.ended_by_hidl = self.world.kills[len(before) :]

    def _jobs_of(self, run: Path) -> list[SimulatedJob]:
        return [job for job in self.world.jobs.values() if job.directory == run]

    # ---- what the user does

    @rule(
        target=runs,
        answer=st.sampled_from(["id", "id", "id", "taken, no answer", "no answer", "refused"]),
        dies_after=st.none() | st.integers(0, 8),
        hidl=st.integers(0, 1),
    )
    def submit(self, answer: str, dies_after: int | None, hidl: int) -> Path:
        """``hidl run --no-wait``."""
        self.number += 1
        directory = self.place / "runs" / f"run-{self.number}"
        directory.mkdir(parents=True)
        self.made[directory] = self.world.now
        self.world.answer_to_sbatch, self.world.steps_to_live = answer, dies_after
        with self._using(hidl) as hidls, suppress(HidlError):
            hidls.submit(Run(directory))
        assert len(self._jobs_of(directory)) <= 1, "two jobs for one run"
        return directory

    @rule(
        seconds=st.sampled_from([0.0, 0.1, 1.0, 20.0, 20.0, 200.0, 4000.0]),
        dies_after=st.none() | st.none() | st.integers(0, 12),
        hidl=st.integers(0, 1),
    )
    def look_later(self, seconds: float, dies_after: int | None, hidl: int) -> None:
        """Time goes by, then ``hidl status``."""
        self.world.now += seconds
        self._look(hidl, dies_after)

    def _look(self, hidl: int, dies_after: int | None = None) -> list[Status]:
        runs = [Run(directory) for directory in sorted((self.place / "runs").glob("*"))]
        never = {job.id for job in self.world.jobs.values() if job.never_starts}
        self.world.steps_to_live = dies_after
        self._give_up_unknown()
        statuses: list[Status] = []
        with self._using(hidl) as hidls:
            statuses = hidls.poll(runs)
        assert set(self.ended_by_hidl) <= never, "a look has cancelled a job"
        return statuses

    @rule(run=runs, dies_after=st.none() | st.none() | st.integers(0, 12), hidl=st.integers(0, 1))
    def cancel(self, run: Path, dies_after: int | None, hidl: int) -> None:
        """``hidl cancel``."""
        own = {job.id for job in self._jobs_of(run)}
        self.world.steps_to_live = dies_after
        self._give_up_unknown()
        with self._using(hidl) as hidls, suppress(HidlError):
            asked = self.world.up
            hidls.cancel(Run(run), state=State.CANCELLED)
            self.cancelled.add(run)
            left = [job for job in self._jobs_of(run) if job.lives and not job.hidden and job.settling is None]
            assert not (left and asked and self._is_known(run) and run not in self.given_up), "cancel has left a job"
        if self.ended_by_hidl:
            self.cancelled.add(run)
        assert set(self.ended_by_hidl) <= own, "another's job was cancelled"

    def _give_up_unknown(self) -> None:
        """Exempt jobs whose id no hidl got: nothing shows that a listing without them was cut."""
        if self.world.is_cut:
            runs = (self.place / "runs").glob("*")
            self.given_up |= {each for each in runs if ticket.read_reference(Run(each)).id is None}

    def _is_known(self, run: Path) -> bool:
        """Whether the run's own job is alive: a copy that was submitted by hand has others."""
        return len(self._jobs_of(run)) == 1 and decision.read_status(Run(run)).state is not State.COMPLETED

    @rule()
    def submit_something_else(self) -> None:
        """The user's other jobs."""
        self.world.take(self.place / "other")
        (self.place / "other").mkdir(exist_ok=True)

    @rule(run=runs)
    def copy_and_submit_by_hand(self, run: Path) -> None:
        """As the script says: copy the directory, and submit job.sh."""
        self.number += 1
        copy = self.place / "runs" / f"copy-{self.number}"
        shutil.copytree(run, copy)
        self.made[copy] = self.world.now
        self.copied[copy] = decision.read_status(Run(copy))
        self.world.take(copy)

    # ---- what the cluster does

    @rule(
        event=st.sampled_from([*CLUSTER, "start", "end", "end", "clean up"]), number=st.integers(0, 9), data=st.data()
    )
    def cluster(self, event: str, number: int, data: st.DataObject) -> None:
        """Something happens to a job, of those that it can happen to."""
        fitting = [job for job in self.world.jobs.values() if CLUSTER[event](job)]
        if not fitting:
            return
        job = fitting[number % len(fitting)]
        if event == "start":
            self.world.start(job)
        elif event == "end":
            word, then, by_itself = data.draw(st.sampled_from(ENDS))
            if word != "COMPLETED" and data.draw(st.integers(0, 2)) == 0:
                then = State.PENDING  # put back into the queue
            self.world.script_ends(job, word, then, by_itself=by_itself)
        elif event == "clean up":
            self.world.settle(job)
        elif event == "never start":
            job.never_starts = True
        elif event == "hide":
            job.hidden = not job.hidden
            self.given_up.add(job.directory)
        else:
            del self.world.jobs[job.id]

    @rule(event=st.sampled_from(["save", "restore", "numbers"]), id=st.integers(90, 110))
    def controller(self, event: str, id: int) -> None:
        """It saves its state, or comes back with an older one; ``FirstJobId``: numbers are given again."""
        if event == "save":
            self.world.save()
        elif event == "numbers":
            self.world.next_id = id
        else:
            self.given_up |= {job.directory for job in self.world.jobs.values() if job.id not in self.world.saved}
            self.world.restore()

    @rule(what=st.sampled_from(["up", "up", "records_answer", "kill_is_refused", "is_late", "is_cut"]))
    def switch(self, what: str) -> None:
        """The controller goes away or comes back, so does the accounting; ``scancel`` fails; files come late.

        A listing may end between two jobs.
        """
        setattr(self.world, what, not getattr(self.world, what))
        if not self.world.is_late:
            self.world.arrive()

    @rule(skew=st.sampled_from([0.0, 0.0, 180.0, -180.0]))
    def clocks(self, skew: float) -> None:
        """The nodes' clocks go apart from the others."""
        self.world.skew = skew

    @rule(run=runs)
    def disk(self, run: Path) -> None:
        """The disk fills up, or is emptied."""
        (self.world.full.discard if run in self.world.full else self.world.full.add)(run)

    # ---- what always holds

    @invariant()
    def no_end_while_the_job_lives(self) -> None:
        """An end that is written down is one."""
        for directory in (self.place / "runs").glob("*"):
            said = decision.read_status(Run(directory))
            living = [job for job in self._jobs_of(directory) if job.lives and job.settling is None]
            if not said.is_settled or not living:
                continue
            if said.state is State.COMPLETED or said == self.copied.get(directory):
                continue  # by a word of its own; a copy that has not begun has its original's
            assert directory in self.given_up, f"{directory.name} is {said.state.value} ({said.reason}), and lives"

    def teardown(self) -> None:
        """All comes back, all jobs end, and each run has the end that its job had."""
        if not hasattr(self, "world"):
            return
        with self.stack:
            self._the_end()

    def _the_end(self) -> None:
        world = self.world
        world.up, world.records_answer, world.is_late, world.kill_is_refused = True, True, False, False
        world.is_cut = False
        world.full.clear()
        world.arrive()
        for job in list(world.jobs.values()):
            job.hidden = False
            if job.settling is not None:
                world.settle(job)
            # Where it has run, its nodes come back.
            has_run = decision.read_status(Run(job.directory)).started is not None
            if job.state is State.PENDING and (has_run or not job.never_starts):
                world.start(job)
            if job.state is State.RUNNING:
                world.script_ends(job, "COMPLETED", State.COMPLETED, by_itself=True)
                world.settle(job)
        for _ in range(6):
            world.now += 400.0
            statuses = self._look(0)
            self.no_end_while_the_job_lives()
        for directory, status in zip(sorted((self.place / "runs").glob("*")), statuses, strict=True):
            assert status.state.is_final, f"{directory.name} is {status.state.value} ({status.reason}) for ever"
            jobs = self._jobs_of(directory)
            begun = jobs and (jobs[-1].started or not directory.name.startswith("copy"))
            if begun and directory not in self.given_up:
                self._is_true(directory, status, max(jobs, key=lambda job: job.ended or 0.0))

    def _is_true(self, directory: Path, status: Status, job: SimulatedJob) -> None:
        assert not job.lives, f"{directory.name} is {status.state.value}, and its job still waits"
        if job.said == "COMPLETED":
            true = {State.COMPLETED}
        elif job.by_itself:
            true = {State.FAILED, State.LOST} if job.said in (None, "RUNNING") else {State(job.said)}
        else:
            true = {job.state}
        if directory in self.cancelled:
            true |= {State.CANCELLED}
        if job.never_starts:
            true |= {State.REFUSED}
        assert status.state in true, f"{directory.name} is {status.state.value} ({status.reason}); true: {true}, {job}"


class LifeOfRunsOnLsf(LifeOfRuns):
    """The same on LSF."""

    backend = HostileLsf


@pytest.fixture
def life() -> Iterator[LifeOfRuns]:
    """One history of it, which is told by hand; at its end, what always holds is looked at."""
    life = LifeOfRuns()
    life.begin()
    yield life
    life.no_end_while_the_job_lives()
    life.teardown()


def started(life: LifeOfRuns) -> tuple[Path, SimulatedJob]:
    """A run whose job runs."""
    life.submit("id", None, 0)
    (job,) = life.world.jobs.values()
    life.world.start(job)
    return job.directory, job


def test_a_first_attempt_does_not_end_a_job_that_runs_again(life: LifeOfRuns) -> None:
    _, job = started(life)
    life.world.script_ends(job, "CANCELLED", State.PENDING, by_itself=False)
    life.world.settle(job)
    life.world.now += 200
    job.state, job.started = State.RUNNING, life.world.now  # its script has not written anything yet
    life.look_later(1.0, None, 0)


def test_a_job_that_begins_and_ends_while_the_scheduler_answers_ends_by_its_word(life: LifeOfRuns) -> None:
    life.submit("id", None, 0)
    (job,) = life.world.jobs.values()

    def ask() -> None:
        Adversary.ask(life.world)
        if job.state is State.PENDING:
            life.world.start(job)
            life.world.script_ends(job, "CANCELLED", State.TIMEOUT, by_itself=False)
            life.world.settle(job)

    life.world.now += 20
    with mock.patch.object(life.world, "ask", ask):
        assert [status.state for status in life._look(0)] == [State.RUNNING]
    life.world.now += 20
    assert [status.state for status in life._look(0)] == [State.TIMEOUT]


def test_a_job_that_waits_again_has_not_ended_while_nobody_answers(life: LifeOfRuns) -> None:
    _, job = started(life)
    life.world.script_ends(job, "CANCELLED", State.PENDING, by_itself=False)
    life.world.settle(job)
    life.world.up = False
    life.look_later(200.0, None, 0)


def test_why_a_job_ended_is_waited_for_though_the_clean_up_takes_long(life: LifeOfRuns) -> None:
    _, job = started(life)
    life.world.script_ends(job, "CANCELLED", State.NODE_FAIL, by_itself=False)
    life.look_later(200.0, None, 0)


def test_why_a_job_ended_is_waited_for_though_the_records_do_not_say_it(life: LifeOfRuns) -> None:
    _, job = started(life)
    life.world.script_ends(job, "CANCELLED", State.NODE_FAIL, by_itself=False)
    for _ in range(3):
        life.look_later(200.0, None, 0)


def test_a_cancellation_that_was_refused_leaves_no_reason(life: LifeOfRuns) -> None:
    run, job = started(life)
    life.world.kill_is_refused = True
    life.cancel(run, None, 0)
    life.world.script_ends(job, "FAILED", State.FAILED, by_itself=True)
    life.world.settle(job)


@pytest.mark.parametrize("dies_after", range(8))
def test_a_cancellation_that_never_reached_the_scheduler_is_none(life: LifeOfRuns, dies_after: int) -> None:
    run, job = started(life)
    life.world.script_ends(job, "FAILED", State.FAILED, by_itself=True)
    life.cancel(run, dies_after, 0)
    life.look_later(200.0, None, 1)


def test_a_job_that_comes_back_can_be_cancelled(life: LifeOfRuns) -> None:
    life.submit("id", None, 0)
    (job,) = life.world.jobs.values()
    job.hidden = True
    life.given_up.add(job.directory)
    for _ in range(3):
        life.look_later(200.0, None, 0)
    job.hidden = False
    life.cancel(job.directory, None, 1)
    assert not job.lives


def test_a_job_that_never_starts_is_cancelled_by_the_number_that_it_has(life: LifeOfRuns) -> None:
    life.submit("id", None, 0)
    (job,) = life.world.jobs.values()
    run = Run(job.directory)
    ticket.write_reference(
        run, "slurm", replace(ticket.read_reference(run), id=None)
    )  # hidl was killed before it noted it
    job.never_starts = True
    life.look_later(20.0, None, 0)
    assert (run.status().state, job.lives) == (State.REFUSED, False)


@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        (LifeOfRuns, 200),
        (LifeOfRunsOnLsf, 50),
        *(
            pytest.param(kind, 2_000, marks=[pytest.mark.deep, pytest.mark.timeout(3600)])
            for kind in (LifeOfRuns, LifeOfRunsOnLsf)
        ),
    ],
)
def test_whatever_happens_runs_have_the_ends_of_their_jobs(kind: type[LifeOfRuns], examples: int) -> None:
    checks = list(HealthCheck)
    run_state_machine_as_test(
        kind,
        settings=settings(max_examples=examples, stateful_step_count=50, deadline=None, suppress_health_check=checks),
    )
