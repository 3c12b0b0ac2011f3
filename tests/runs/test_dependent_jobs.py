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


def start(hidl: Hidl) -> Path:
    words = ("--site", "pretend", "--nodes", "1", "--stack", "mpi", "--no-mpi", "--until-done", "--time", "10")
    completed = hidl("run", *words, "--no-wait", "--json", *PROGRAM)
    assert completed.returncode == 0, completed.stderr
    run = Path(json.loads(completed.stdout)["directory"])
    reaches(run, "2")
    until((run / "next").exists)
    return run


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
