"""Goodput, lost work and restart time of runs of several jobs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.plan.launch_plan import plan_of
from hidl_cli.record import Run, State, Status
from hidl_cli.runs.goodput import Goodput, JobSteps, count_failures, measure, read_goodput
from hidl_workloads import launcher_environment
from hidl_workloads.progress import DIRECTORY, Progress, begin_job
from hidl_workloads.stop import STOPPED
from tests.conftest import REPOSITORY, Hidl
from tests.docs.test_programs import programs
from tests.waiting import until

STEPS = REPOSITORY / "tests" / "programs" / "steps.py"


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Job:
    """A job that trains with given times, and the record that its program leaves."""

    def __init__(self, directory: Path, clock: Clock, after: int = 0, *, started: float | None = None) -> None:
        self._clock, self._directory, self._name = clock, directory, f"job-{clock.time}"
        began = str(clock.time if started is None else started)
        self.progress = Progress(directory, run="run", token=self._name, job_started=began, clock=clock, now=clock)
        self.step = after
        self._clock.time += 3  # looks for a checkpoint
        self.progress.continue_from(after)

    def train(self, steps: int, seconds: float) -> None:
        for _ in range(steps):
            self._clock.time += seconds
            self.step += 1
            self.progress.end_step(self.step)

    def save(self, seconds: float, *, saved: bool = True) -> None:
        self._clock.time += seconds
        self.progress.end_checkpoint(saved=saved)

    def record(self) -> JobSteps:
        file = self._directory / DIRECTORY / f"{self._name}.json"
        return JobSteps.from_json(json.loads(file.read_text()))


def status(
    started: float, ended: float | None, hosts: int = 2, *, state: State = State.FAILED, step: int = 1
) -> Status:
    names = tuple(f"node{each}" for each in range(hosts))
    return Status(state, step=step, started=started, ended=ended, exit_status=1, hosts=names)


def found(goodput: Goodput | None) -> Goodput:
    assert goodput is not None
    return goodput


def test_a_job_without_interruption(tmp_path: Path) -> None:
    clock = Clock()
    job = Job(tmp_path, clock, started=980)
    job.train(10, 5)
    job.save(2)
    job.train(10, 5)
    job.save(4)
    result = found(measure([status(980, clock.time + 1)], [job.record()], nodes=2))
    assert result.useful_seconds == pytest.approx(100)
    assert result.share == pytest.approx(100 / (20 + 3 + 100 + 6 + 1))
    assert (result.lost_seconds, result.restart_seconds) == (0, ())
    assert result.metrics()["checkpoint_time"] == {"value": 3.0, "unit": "s", "samples": [3.0]}
    assert result.describe() == "goodput 0.769 in 1 job"


def test_steps_after_the_last_checkpoint_of_a_killed_job_are_lost(tmp_path: Path) -> None:
    clock = Clock()
    first = Job(tmp_path, clock, started=995)
    first.train(10, 5)
    first.save(2)
    first.train(4, 5)  # killed here: 20 s of work, on two nodes
    killed = clock.time
    clock.time += 500  # in the queue
    began = clock.time
    second = Job(tmp_path, clock, after=10, started=began - 7)
    second.train(10, 5)
    second.save(2)
    jobs = [status(995, None), status(began - 7, clock.time)]
    result = found(measure(jobs, [second.record(), first.record()], nodes=2))
    assert result.useful_seconds == pytest.approx(100)
    assert result.lost_seconds == pytest.approx(20)
    assert result.lost_node_hours == pytest.approx(2 * 20 / 3600)
    assert result.restart_seconds == (pytest.approx(7 + 3 + 5),)
    assert result.node_seconds == pytest.approx(2 * (killed - 995 + clock.time - began + 7))
    assert result.share == pytest.approx(2 * 100 / result.node_seconds)
    assert found(measure(jobs, [first.record(), second.record()], nodes=2, share=0.5)).lost_node_hours == (
        pytest.approx(20 / 3600)
    )


def test_a_job_that_stopped_in_good_order_loses_nothing(tmp_path: Path) -> None:
    clock = Clock()
    first = Job(tmp_path, clock)
    first.train(3, 5)
    first.save(1)
    ended = clock.time
    second = Job(tmp_path, clock, after=3)
    second.train(3, 5)
    stopped = replace(status(1000, ended), exit_status=STOPPED)
    records = [first.record(), second.record()]
    result = found(measure([stopped, status(ended, clock.time)], records, nodes=1))
    assert (result.useful_seconds, result.lost_seconds) == (pytest.approx(30), 0)
    assert result.describe().startswith("goodput 0.811 in 2 jobs, no step repeated, ")
    failed = found(measure([status(1000, ended), status(ended, clock.time)], records, nodes=1))
    assert "no recorded step repeated after 1 failure(s); up to 1 s of steps (60 s if a node" in failed.describe()


def test_a_damaged_checkpoint_loses_the_steps_of_several_jobs(tmp_path: Path) -> None:
    """The third job continues after step 4: of the first job 6 steps are lost, and all 5 of the second one."""
    clock = Clock()
    jobs, records = [], []
    for after, steps in ((0, 6), (10, 5), (4, 16)):
        began = clock.time
        job = Job(tmp_path, clock, after)
        if after == 0:
            job.train(4, 5)
            job.save(1)
        job.train(steps, 5)
        job.save(1)
        jobs.append(status(began, clock.time, hosts=1))
        records.append(job.record())
    result = found(measure(jobs, records, nodes=1))
    assert result.useful_seconds == pytest.approx(5 * (4 + 16))
    assert result.lost_seconds == pytest.approx(5 * (6 + 5))


def test_compilation_in_the_first_step_is_not_useful(tmp_path: Path) -> None:
    clock = Clock()
    job = Job(tmp_path, clock)
    job.train(1, 60)
    job.train(9, 5)
    job.save(0)
    assert job.record().seconds == pytest.approx(50)
    alone = Job(tmp_path, clock)
    alone.train(1, 60)
    alone.save(0)
    assert alone.record().seconds == pytest.approx(60)


def test_steps_between_two_known_points_are_interpolated(tmp_path: Path) -> None:
    clock = Clock()
    job = Job(tmp_path, clock)
    job.train(11, 2)
    job.save(1)
    record = job.record()
    assert [record.seconds_until(step) for step in (-1, 0, 1, 6, 11, 20)] == pytest.approx([0, 0, 2, 12, 22, 22])


def test_a_checkpoint_that_failed_is_neither_a_step_nor_a_checkpoint(tmp_path: Path) -> None:
    clock = Clock()
    job = Job(tmp_path, clock)
    job.train(5, 2)
    job.save(30, saved=False)
    job.train(5, 2)
    job.save(4)
    record = job.record()
    assert (record.seconds, record.checkpoints, record.checkpoint_seconds) == (pytest.approx(20), 1, pytest.approx(4))


def test_without_a_record_the_goodput_is_unknown(tmp_path: Path) -> None:
    assert measure([status(1000, 1010)], [], nodes=1) is None
    clock = Clock()
    Job(tmp_path, clock).progress.write()
    assert not (tmp_path / DIRECTORY).exists()  # no step has ended
    job = Job(tmp_path, clock)
    job.train(2, 3)
    other = replace(job.record(), job_started=1000.5)
    assert measure([status(1000, 1010)], [other], nodes=1) is None  # of a job that is not in the list


def test_a_job_that_lived_for_less_than_a_second_keeps_its_record(tmp_path: Path) -> None:
    """The clock of the node that ran the first program is four seconds ahead of the one that ran the scripts."""
    clock = Clock()
    first = Job(tmp_path, clock, started=996.0)
    first.train(4, 0.05)
    first.save(0)
    clock.time = 1000.25
    second = Job(tmp_path, clock, after=4, started=996.9)
    second.train(4, 0.05)
    result = found(measure([status(996, 996.8), status(996.9, 1005)], [first.record(), second.record()], nodes=1))
    assert result.without_step == 0
    assert result.restart_seconds == (pytest.approx(1000.25 + 3 + 0.05 - 996.9),)


def test_of_records_at_the_same_time_one_counts(tmp_path: Path) -> None:
    """Four ranks have recorded the steps of a job; its program was then started again."""
    jobs = []
    for rank in range(4):
        clock = Clock()
        clock.time += rank / 1000
        job = Job(tmp_path / str(rank), clock, started=999)
        job.train(10 - rank // 3, 5)
        job.save(1)
        jobs.append(job)
    clock = Clock()
    clock.time += 100
    again = Job(tmp_path / "again", clock, after=10, started=999)
    again.train(4, 5)
    again.save(1)
    result = found(measure([status(999, clock.time)], [each.record() for each in (*jobs, again)], nodes=1))
    assert (result.lost_seconds, result.checkpoints) == (0, 2)
    assert result.useful_seconds == pytest.approx(14 * 5)


def interrupted_at_start(tmp_path: Path) -> tuple[list[Status], list[JobSteps]]:
    """Jobs that train for an hour, hang for an hour, are killed after another one, and train for an hour."""
    clock = Clock()
    first = Job(tmp_path, clock)
    first.train(1199, 3)
    first.save(0)
    clock.time = 1000.0 + 3 * 3600
    last = Job(tmp_path, clock, after=1199)
    last.train(1199, 3)
    jobs = [(1000.0, 4600.0), (4600.0, 8200.0), (8200.0, None), (11800.0, 15400.0)]
    return [status(*each, hosts=1) for each in jobs], [first.record(), last.record()]


def test_jobs_that_end_before_their_first_step_are_counted(tmp_path: Path) -> None:
    jobs, records = interrupted_at_start(tmp_path)
    result = found(measure(jobs, records, nodes=1))
    assert (result.jobs, result.without_step, result.without_end) == (4, 2, 1)
    assert (result.node_seconds, result.unrecorded_node_seconds) == (3 * 3600, 3600)
    assert result.restart_seconds == (pytest.approx(6),)
    assert result.describe().endswith(
        ", no step in 2 jobs, 1 job killed (goodput at least 0.500, with the time that was not recorded)"
    )
    assert result.share == pytest.approx(2 * 1199 * 3 / (3 * 3600))
    document = result.to_json()
    assert (document["jobs_without_step"], document["jobs_without_end"]) == (2, 1)
    assert document["unrecorded_node_time"] == 3600


@pytest.mark.parametrize(
    ("limit", "state", "unrecorded", "without_end"),
    [(1800.0, State.LOST, 1800.0, 1), (None, State.LOST, None, 1), (1800.0, State.RUNNING, 0.0, 0)],
)
def test_the_unrecorded_time_of_the_last_job_is_limited_by_its_time_limit(
    tmp_path: Path, limit: float | None, state: State, unrecorded: float | None, without_end: int
) -> None:
    jobs, records = interrupted_at_start(tmp_path)
    last = status(8200.0, None, hosts=1, state=state)
    result = found(measure([*jobs[:2], last], records[:1], nodes=1, limit=limit))
    assert (result.unrecorded_node_seconds, result.without_end) == (unrecorded, without_end)
    assert ("killed" in result.describe()) is bool(without_end)
    assert ("at least" in result.describe()) is (unrecorded == 1800)


def test_a_job_that_finds_the_limit_reached_is_no_job_that_trained(tmp_path: Path) -> None:
    jobs, records = interrupted_at_start(tmp_path)
    killed = replace(jobs[0], ended=None, state=State.RUNNING)
    rejected = replace(status(9000.0, 9001.0, hosts=1, step=0), not_run=True)
    result = found(measure([killed, rejected], records[:1], nodes=1))
    assert (result.jobs, result.failures, result.without_step, result.without_end) == (1, 1, 0, 1)
    assert result.metrics()["time_between_failures"]["value"] == pytest.approx(3600)
    assert result.node_seconds == pytest.approx(3601)


def test_a_last_job_that_fails_before_its_program_starts_is_a_job(tmp_path: Path) -> None:
    jobs, records = interrupted_at_start(tmp_path)
    failed = status(4600.0, 8200.0, hosts=1, step=0)
    result = found(measure([jobs[0], failed], records[:1], nodes=1))
    assert (result.jobs, result.failures, result.without_step) == (2, 1, 1)
    assert result.describe().startswith("goodput 0.500 in 2 jobs, ")
    assert result.metrics()["time_between_failures"]["value"] == pytest.approx(7200)


def test_the_record_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first step, with each checkpoint, and once per minute: a lost node takes along the rest."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    job = Job(tmp_path, Clock())
    job.train(1, 5)
    assert len(synced) == 1
    job.train(11, 5)
    assert len(synced) == 1
    job.train(1, 5)
    assert len(synced) == 2
    job.save(1)
    assert len(synced) == 3
    job.train(11, 5)
    assert len(synced) == 3


def test_the_record_of_a_long_job_stays_small(tmp_path: Path) -> None:
    clock = Clock()
    job = Job(tmp_path, clock, after=10**12)
    for _ in range(100):
        job.train(1, 123456.789012345)
        job.save(98765.4321012345)
    assert [file.stat().st_size for file in (tmp_path / DIRECTORY).iterdir()] == [2048]
    assert job.record().points[-1][0] == 10**12 + 100


OF_SEVERAL_JOBS = (
    *("goodput", "lost_work", "lost_node_hours", "restart_time", "checkpoint_time", "time_between_failures"),
)


@pytest.fixture
def interrupted(hidl_with: Callable[..., Hidl]) -> tuple[Hidl, Path]:
    """A run that stops in good order after step 10, and is killed after step 20."""
    hidl = hidl_with("mpi")
    program = ("python", str(STEPS), "30", "0.2", "10=stop", "20=kill")
    completed = hidl("run", "--stack", "mpi", "--until-done", "--", *program)
    assert completed.returncode == 0, completed.stderr
    (run,) = hidl.runs.iterdir()
    return hidl, run


def test_a_real_run_reports_its_goodput(interrupted: tuple[Hidl, Path]) -> None:
    hidl, run = interrupted
    metrics: dict[str, Any] = json.loads((run / "metrics.json").read_text())["steps"][0]["metrics"]
    jobs = [*map(json.loads, (run / "attempts.jsonl").read_text().splitlines())]
    jobs.append(json.loads((run / "status.json").read_text()))
    assert len(jobs) == 3
    spent = sum(job["ended"] - job["started"] for job in jobs)
    recorded = 10 * 0.2 - 1 - 0.2  # the record of a killed job is up to a second old, and ends with a step
    assert recorded <= metrics["lost_work"]["value"] <= 10 * 0.2 + spent - 40 * 0.2
    assert metrics["lost_node_hours"]["value"] == pytest.approx(metrics["lost_work"]["value"] / 3600)
    assert 30 * 0.2 / spent <= metrics["goodput"]["value"] < 1
    assert len(metrics["restart_time"]["samples"]) == 2
    assert all(0.2 < each < spent for each in metrics["restart_time"]["samples"])
    assert metrics["checkpoint_time"]["value"] > 0
    assert metrics["time_between_failures"]["value"] == pytest.approx(spent)
    verdict = json.loads((run / "verdict.json").read_text())
    assert f"goodput {metrics['goodput']['value']:.3f} in 3 jobs, " in verdict["reason"]
    shown = hidl("results", "show", run.name).stdout
    assert all(name in shown for name in ("goodput", "lost_work", "lost_node_hours", "restart_time", "checkpoint_time"))
    document = hidl.json("status", run.name)["goodput"]
    assert document["jobs"] == 3
    assert {name: document[name] for name in OF_SEVERAL_JOBS} == {
        name: metrics[name]["value"] for name in OF_SEVERAL_JOBS
    }
    page = run.parent / "report.html"
    assert hidl("report", "--output", str(page)).returncode == 0
    assert "goodput" in page.read_text()


def test_a_job_counts_once_while_the_next_one_waits(interrupted: tuple[Hidl, Path]) -> None:
    """The job is in attempts.jsonl then, and in status.json without its end, also after ``hidl cancel``."""
    hidl, directory = interrupted
    run = Run(directory)
    before = found(read_goodput(run, plan_of(run)))
    seconds, failures = count_failures(run, plan_of(run))
    last = json.loads((directory / "status.json").read_text())
    with (directory / "attempts.jsonl").open("a") as file:
        file.write(json.dumps(last) + "\n")
    for state in ("RUNNING", "CANCELLED"):
        document = last | {"state": state, "ended": None, "exit_status": None}
        (directory / "status.json").write_text(json.dumps(document))
        assert read_goodput(run, plan_of(run)) == before
        assert count_failures(run, plan_of(run)) == (seconds, failures)
    assert len(hidl.json("status", run.id)["attempts"]) == 2


@pytest.mark.parametrize("name", ["status.json", "attempts.jsonl"])
def test_a_damaged_file_does_not_hide_the_other_runs(interrupted: tuple[Hidl, Path], name: str) -> None:
    hidl, directory = interrupted
    run = Run(directory)
    (directory / name).write_bytes((directory / name).read_bytes()[:70] + b"\xff")
    goodput = read_goodput(run, plan_of(run))
    assert goodput is not None
    assert goodput.jobs == (2 if name == "status.json" else 1)
    completed = hidl("status")
    assert completed.returncode == 0, completed.stderr
    assert run.id[:8] in completed.stdout


def test_the_programs_own_metric_takes_precedence(hidl_with: Callable[..., Hidl]) -> None:
    hidl = hidl_with("mpi")
    program = ("python", str(STEPS), "4", "0.05")
    completed = hidl("run", "--stack", "mpi", "--until-done", "--metric", "goodput=done at (\\d+)", "--", *program)
    assert completed.returncode == 0, completed.stderr
    (run,) = hidl.runs.iterdir()
    metrics = json.loads((run / "metrics.json").read_text())["steps"][0]["metrics"]
    assert (metrics["goodput"]["value"], metrics["goodput"]["unit"]) == (4, "1")
    assert metrics["lost_work"]["value"] == 0


def test_steps_without_a_checkpoint_are_no_progress(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    """Jobs record their steps beside the checkpoints, also in a directory whose name is a pattern."""
    hidl = hidl_with("mpi")
    hidl = Hidl(hidl.environment | {"XDG_STATE_HOME": str(tmp_path / "state [1]")})
    program = ("python", str(STEPS), "30", "0.05", "5=kill", "6=kill", "7=kill", "8=kill")
    completed = hidl("run", "--stack", "mpi", "--until-done", "--", *program)
    assert completed.returncode == 8, completed.stderr
    assert "two jobs in a row saved nothing new in " in completed.stderr
    (run,) = (tmp_path / "state [1]" / "hidl" / "runs").iterdir()
    assert len((run / "attempts.jsonl").read_text().splitlines()) == 1
    assert len(list((run / "checkpoint" / DIRECTORY).iterdir())) == 2
    goodput = hidl.json("status", run.name)["goodput"]
    assert (goodput["jobs"], goodput["useful_time"] > 0, goodput["checkpoints"]) == (2, True, 0)
    assert "goodput so far" in hidl("status", run.name).stdout


def test_a_program_with_checkpoints_of_its_own_has_a_goodput(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    """The program of the page, with longer steps; the first job is asked to stop, and the second one is killed."""
    hidl = hidl_with("mpi")
    text = next(each for each in programs("docs/how-to/stop-and-continue.md") if each.startswith("# own.py"))
    program = tmp_path / "own.py"
    slow = "    total += step\n    (1 <= step <= 70) and __import__('time').sleep(0.05)\n"
    killed = "    progress.end_step(step)\n    if step == 50 and not (file.parent / '.killed').exists():\n"
    killed += "        progress.write(); (file.parent / '.killed').touch(); os.kill(os.getpid(), 9)\n"
    changed = text.replace("    total += step\n", slow).replace("    progress.end_step(step)\n", killed)
    program.write_text(changed)
    assert changed.count("sleep") == changed.count("kill(") == 1
    words = ("run", "--stack", "mpi", "--no-mpi", "--until-done", "--no-wait", "--json", "--", "python", str(program))
    completed = hidl(*words)
    assert completed.returncode == 0, completed.stderr
    run = Path(json.loads(completed.stdout)["directory"])
    until(lambda: list((run / "checkpoint" / DIRECTORY).glob("*.json")), otherwise=(run / "stderr.log").read_text)
    (run / "stop").touch()
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    assert (run / "stdout.log").read_text().split()[-1] == "500500"  # Hydra prints more if the program is killed
    ended = [json.loads(line)["exit_status"] for line in (run / "attempts.jsonl").read_text().splitlines()]
    assert ended[0] == 75
    assert len(ended) == 2
    metrics = json.loads((run / "metrics.json").read_text())["steps"][0]["metrics"]
    assert 0 < metrics["goodput"]["value"] < 1
    assert 0 < metrics["lost_work"]["value"] <= 50 * 0.05 * 2
    assert len(metrics["restart_time"]["samples"]) == 2
    assert metrics["checkpoint_time"]["value"] > 0


def test_only_rank_0_of_a_run_of_several_jobs_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"HIDL_CHECKPOINT": str(tmp_path / "checkpoint"), "HIDL_RUN_ID": "run", "HIDL_JOB_STARTED": "7.5"}
    for missing, rank in (("HIDL_CHECKPOINT", 0), ("HIDL_RUN_ID", 0), ("HIDL_JOB_STARTED", 0), ("", 1), ("", 0)):
        for name, value in variables.items():
            monkeypatch.setenv(name, "" if name == missing else value)
        progress = begin_job(3, rank=rank)
        progress.end_step(4)
        progress.end_checkpoint()
        progress.write()
        files = list(tmp_path.rglob("*.json"))
        assert len(files) == (not missing and rank == 0)
    record = JobSteps.from_json(json.loads(files[0].read_text()))
    assert (record.job_started, record.start, record.points[-1][0], record.checkpoints) == (7.5, 3, 4, 1)


def test_the_rank_of_a_job_without_one_is_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun's RANK, or that of the launcher: PMI_RANK describes the process that started torchrun."""
    for name in ("RANK", *launcher_environment.RANKS):
        monkeypatch.delenv(name, raising=False)
    variables = {"HIDL_CHECKPOINT": str(tmp_path), "HIDL_RUN_ID": "run", "HIDL_JOB_STARTED": "7.5"}
    for ranks, is_recorded in (
        ({"RANK": "1"}, False),
        ({"PMI_RANK": "2"}, False),
        ({"RANK": "3", "PMI_RANK": "0"}, False),
        ({"SLURM_PROCID": "1"}, False),
        ({"RANK": "0", "PMI_RANK": "1"}, True),
        ({}, True),
    ):
        with monkeypatch.context() as patch:
            for name, value in (variables | ranks).items():
                patch.setenv(name, value)
            progress = begin_job()
            progress.end_step(1)
            progress.write()
        files = list(tmp_path.rglob("*.json"))
        assert len(files) == is_recorded, ranks
        for file in files:
            file.unlink()
