"""What the tests on the real Slurm share: hidl on the cluster with the workload ``toy``, and how runs are looked at."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import LivingCluster
from tests.conftest import Hidl, _environment
from tests.waiting import until

PARAMETERS = {
    "sleep": {"type": "float", "default": 0},
    "go": {"type": "str", "default": ""},  # the program waits for this file: ``Bench.go``
    **{name: {"type": "bool", "default": False} for name in ("fail", "silent")},
}
METRICS = {"rate": {"unit": "items/s", "better": "higher"}}


@dataclass(frozen=True)
class Bench:
    """hidl, and the cluster that it runs on."""

    hidl: Hidl
    cluster: LivingCluster
    go: Path  # what a run that was started with ``--set go=<this>`` waits for

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """``hidl run toy`` on the cluster, to its end."""
        return self.hidl("run", "toy", "--site", "test-cluster", *arguments, **variables)

    def start(self, *arguments: str) -> Path:
        """``hidl run toy --no-wait``; returns the run's directory."""
        completed = self.hidl("run", "toy", "--site", "test-cluster", *arguments, "--no-wait", "--json")
        assert completed.returncode == 0, completed.stderr
        return Path(json.loads(completed.stdout)["directory"])

    def running(self, run: Path) -> Path:
        """Wait until the program of the run has begun."""
        try:
            until(lambda: "here" in read(run / "stdout.log"))
        except AssertionError:
            told = self.cluster("scontrol", "show", "job", self.job(run)).stdout
            pytest.fail(f"the program did not begin\n{told}\n{read(run / 'stderr.log')}")
        return run

    def status(self, run: Path) -> Any:
        """What ``hidl status`` says of the run."""
        return self.hidl.json("status", run.name)

    def until_state(self, run: Path, state: str) -> Any:
        """Wait until ``hidl status`` says so."""
        until(lambda: self.status(run)["state"] == state)
        return self.status(run)

    def job(self, run: Path) -> str:
        """The id of the run's job."""
        return str(json.loads((run / "job.json").read_text())["id"])

    def state_in_slurm(self, run: Path) -> str:
        """Slurm's own word."""
        return self.cluster(
            "squeue", "--noheader", "--states=all", f"--jobs={self.job(run)}", "-o", "%T"
        ).stdout.strip()

    def change_site(self, *directives: str) -> None:
        """Make every script of the site say these lines too."""
        file = self.hidl.config / "sites" / "test-cluster.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        document = {"name": "test-cluster", "extends": "test-cluster", "policies": {"directives": list(directives)}}
        file.write_text(json.dumps(document))


def first_on_path(tmp_path: Path, program: str, script: str) -> str:
    """A PATH on which a shell script stands before a program of that name; ``$real`` in it is the real one."""
    real = subprocess.run(["which", program], check=True, capture_output=True, text=True).stdout.strip()
    file = tmp_path / "first" / program
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/bash\nreal={real}\n{script}\n")
    file.chmod(0o755)
    rest = subprocess.run(["sh", "-c", "echo $PATH"], check=True, capture_output=True, text=True).stdout.strip()
    return f"{file.parent}:{rest}"


def read(file: Path) -> str:
    """What is in a file; nothing where it is not there."""
    return file.read_text() if file.is_file() else ""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's data directory with the mpi stack installed for the test cluster."""
    root = tmp_path_factory.mktemp("slurm")
    completed = Hidl(_environment(root, root / "data"))("install", "mpi", "--site", "test-cluster")
    assert completed.returncode == 0, completed.stderr
    return root / "data"


@pytest.fixture
def bench(cluster: LivingCluster, data: Path, tmp_path: Path) -> Iterator[Bench]:
    """hidl with the mpi stack and the workload ``toy`` on a whole cluster, which is whole again afterwards."""
    hidl = Hidl(_environment(tmp_path, data) | cluster.environment)
    hidl.add_workload("toy", "toy.py", parameters=PARAMETERS, metrics=METRICS)
    with cluster.restored():
        yield Bench(hidl, cluster, tmp_path / "go")
