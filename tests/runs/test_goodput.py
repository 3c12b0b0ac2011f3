"""Goodput, lost work and restart time of runs of several jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.record import State, Status
from hidl_cli.runs.goodput import Goodput, JobSteps, measure
from hidl_workloads.progress import DIRECTORY, Progress
from tests.conftest import REPOSITORY, Hidl

STEPS = REPOSITORY / "tests" / "programs" / "steps.py"


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Job:
    """A job that trains with given times, and the record that its program leaves."""

    def __init__(self, directory: Path, clock: Clock, after: int = 0) -> None:
        self._clock, self._directory, self._name = clock, directory, f"job-{clock.time}"
        self.progress = Progress(directory, run="run", token=self._name, clock=clock, now=clock)
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


def status(started: float, ended: float | None, hosts: int = 2) -> Status:
    return Status(State.FAILED, started=started, ended=ended, hosts=tuple(f"node{each}" for each in range(hosts)))


def found(goodput: Goodput | None) -> Goodput:
    assert goodput is not None
    return goodput


def test_a_job_without_interruption(tmp_path: Path) -> None:
    clock = Clock()
    job = Job(tmp_path, clock)
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
    first = Job(tmp_path, clock)
    first.train(10, 5)
    first.save(2)
    first.train(4, 5)  # killed here: 20 s of work, on two nodes
    killed = clock.time
    clock.time += 500  # in the queue
    began = clock.time
    second = Job(tmp_path, clock, after=10)
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
    result = found(
        measure([status(1000, ended), status(ended, clock.time)], [first.record(), second.record()], nodes=1)
    )
    assert (result.useful_seconds, result.lost_seconds) == (pytest.approx(30), 0)
    assert "no step repeated" in result.describe()


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
    early = replace(job.record(), began=10.0)
    assert measure([status(1000, 1010)], [early], nodes=1) is None  # of a job that is not in the list


def test_the_record_of_a_long_job_stays_small(tmp_path: Path) -> None:
    clock = Clock()
    job = Job(tmp_path, clock, after=10**12)
    for _ in range(100):
        job.train(1, 123456.789012345)
        job.save(98765.4321012345)
    assert [file.stat().st_size for file in (tmp_path / DIRECTORY).iterdir()] == [2048]
    assert job.record().points[-1][0] == 10**12 + 100


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
    assert (document["jobs"], document["share"]) == (3, metrics["goodput"]["value"])
    page = run.parent / "report.html"
    assert hidl("report", "--output", str(page)).returncode == 0
    assert "goodput" in page.read_text()


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
    assert (goodput["jobs"], goodput["useful_seconds"] > 0, goodput["checkpoints"]) == (2, True, 0)
    assert "goodput so far" in hidl("status", run.name).stdout
