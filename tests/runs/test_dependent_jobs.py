"""Runs whose jobs depend on each other, on stand-ins for LSF, PBS and Flux: ``hidl run --until-done``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from hidl_twin.batch.store import FINAL
from hidl_twin.batch.system import System
from hidl_twin.flux.system import Flux
from hidl_twin.lsf.system import Lsf
from hidl_twin.pbs.system import Pbs

from tests.cluster.standin import StandIn
from tests.conftest import REPOSITORY, Hidl
from tests.runs.test_until_done import attempts, printed, reaches
from tests.waiting import until

COUNTS = REPOSITORY / "tests" / "programs" / "counts.py"
PROGRAM = ("--", "python", str(COUNTS), "4", "2")
SYSTEMS: dict[str, type[System]] = {"lsf": Lsf, "pbs": Pbs, "flux": Flux}


@pytest.fixture(params=SYSTEMS)
def standin(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    name = request.param
    found = StandIn(SYSTEMS[name](), tmp_path / name)
    found.set(hosts={"localhost": {}}, default_queue="batch")
    monkeypatch.setenv("PATH", f"{found.spool / 'bin'}:{os.environ['PATH']}")
    yield found
    found.end()


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl], standin: StandIn) -> Hidl:
    """hidl with a site whose batch system is the stand-in."""
    hidl = hidl_with("mpi")
    hidl = Hidl(hidl.environment | {"PATH": os.environ["PATH"]})
    site = {
        "name": "pretend",
        "title": "a stand-in on this machine",
        "scheduler": standin.spool.name,
        "launchers": ["mpiexec"],
        "node_types": {"node": {"detect": True}},
        "partitions": {"batch": {"node_type": "node", "max_nodes": 4, "max_wall": "02:00:00"}},
        "default_partition": "batch",
        "policies": {"account": "optional"},
    }
    file = hidl.config / "sites" / "pretend.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(site))
    hidl.json("install", "mpi", "--site", "pretend")
    return hidl


def submit(hidl: Hidl) -> Path:
    words = ("--site", "pretend", "--nodes", "1", "--stack", "mpi", "--no-mpi", "--until-done", "--time", "10")
    completed = hidl("run", *words, "--no-wait", "--json", *PROGRAM)
    assert completed.returncode == 0, completed.stderr
    return Path(json.loads(completed.stdout)["directory"])


def start(hidl: Hidl) -> Path:
    run = submit(hidl)
    reaches(run, "2")
    until((run / "next").exists)
    return run


def submit_without_answer(hidl: Hidl, standin: StandIn, directory: Path, seconds: int) -> tuple[Path, Path]:
    """Submit a run whose first job submits the next one, but gets no answer.

    Args:
        hidl: hidl on the stand-in.
        standin: The stand-in.
        directory: Directory for the program that loses the answer.
        seconds: Time after which this program ends, in seconds.

    Returns the run, and a file that exists as soon as the next job has been accepted.
    """
    name = {"lsf": "bsub", "pbs": "qsub", "flux": "flux"}[standin.spool.name]
    loses, accepted, program = directory / "loses", directory / "accepted", directory / "lossy" / name
    real = standin.spool / "bin" / name
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\ncase "$*" in\n*job.sh*)\n    if [ -e {loses} ]; then\n        rm {loses}\n'
        f'        {real} "$@" > /dev/null 2>&1\n        touch {accepted}\n        exec sleep {seconds}\n    fi\n'
        f'    ;;\nesac\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    standin.set(pending="not yet")
    run = submit(Hidl(hidl.environment | {"PATH": f"{program.parent}:{hidl.environment['PATH']}"}))
    loses.touch()
    return run, accepted


def states(standin: StandIn) -> list[str]:
    return [job.stat for job in standin.store.jobs()]


@pytest.mark.parametrize("ended_by", ["request", "loss of the node"])
def test_the_next_job_continues(hidl: Hidl, standin: StandIn, ended_by: str) -> None:
    run = start(hidl)
    assert states(standin) == ["RUN", "PEND"]
    if ended_by == "loss of the node":
        standin.store.give_order(standin.store.jobs()[0].id, "TERM_CSM_ALLOC")
    else:
        (run / "stop").touch()
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    assert printed(run)[-2:] == ["begins at 2", "done at 4"]
    assert len({each["job"] for each in attempts(run)}) == len(attempts(run)) >= 1
    assert hidl.json("status", run.name)["state"] == "COMPLETED"
    assert until(lambda: all(job.stat in FINAL for job in standin.store.jobs()))
    assert not (run / "next").exists()


def test_the_next_job_is_cancelled_too(hidl: Hidl, standin: StandIn) -> None:
    run = start(hidl)
    assert hidl("cancel", run.name).returncode == 0
    assert hidl.json("status", run.name)["state"] == "CANCELLED"
    assert until(lambda: all(job.stat in FINAL for job in standin.store.jobs()))
    assert len(standin.store.jobs()) == 2
    assert printed(run) == ["begins at 0"]
    assert json.loads((run / "status.json").read_text())["state"] == "CANCELLED"


def test_a_next_job_that_is_being_submitted_does_not_run_after_a_cancellation(
    hidl: Hidl, standin: StandIn, tmp_path: Path
) -> None:
    run, accepted = submit_without_answer(hidl, standin, tmp_path, seconds=60)
    standin.set(pending="")
    until(accepted.exists)
    assert len(standin.store.jobs()) == 2
    assert hidl("cancel", run.name).returncode == 0
    assert hidl.json("status", run.name)["state"] == "CANCELLED"
    assert until(lambda: all(job.stat in FINAL for job in standin.store.jobs()))
    assert len(standin.store.jobs()) == 2
    assert printed(run) == []
    assert json.loads((run / "status.json").read_text())["state"] == "CANCELLED"
    assert not (run / "earlier.1").exists()


def test_only_one_of_several_next_jobs_continues(hidl: Hidl, standin: StandIn, tmp_path: Path) -> None:
    run, _ = submit_without_answer(hidl, standin, tmp_path, seconds=0)
    standin.set(pending="")
    reaches(run, "2")
    assert "this job tries again at its end" in (run / "stderr.log").read_text()
    (run / "stop").touch()
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    assert printed(run) == ["begins at 0", "begins at 2", "done at 4"]
    assert len(attempts(run)) == 1
    assert until(lambda: all(job.stat in FINAL for job in standin.store.jobs()))
    assert "or another job continues it" in (run / "stderr.log").read_text()
    assert len(standin.store.jobs()) == 4
    assert hidl.json("status", run.name)["state"] == "COMPLETED"


@pytest.mark.parametrize("standin", ["lsf"], indirect=True)
def test_a_submission_that_hangs_does_not_keep_the_job(hidl: Hidl, standin: StandIn, tmp_path: Path) -> None:
    standin.set(parse_script=False)  # the script is read when the job starts
    run, _ = submit_without_answer(hidl, standin, tmp_path, seconds=600)
    script = (run / "job.sh").read_text()
    (run / "job.sh").write_text(script.replace("timeout -s KILL 120 ", "timeout -s KILL 2 "))
    standin.set(pending="")
    reaches(run, "2")
    assert "bsub printed no job id within 120 s" in (run / "stderr.log").read_text()
    (run / "stop").touch()
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    assert printed(run) == ["begins at 0", "begins at 2", "done at 4"]
