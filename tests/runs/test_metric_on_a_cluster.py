"""``hidl run --metric`` on a real Slurm: each rank's output is kept, with each launcher, and a study judges it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, Hidl
from tests.tiers import deep

SITE = ("--site", "test-cluster")
PROGRAM = ("python", str(PROGRAMS / "prints_rates.py"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hidl is started in a directory that all nodes share."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("launcher", "stack"), [("srun", "mpi"), deep("mpiexec", "mpi"), deep("mpirun", "openmpi")])
def test_the_output_of_each_rank_is_kept(on_cluster: Callable[..., Hidl], launcher: str, stack: str) -> None:
    hidl = on_cluster(stack)
    options = ("--stack", stack, "--launcher", launcher, "--nodes", "2", "--ranks-per-node", "2")
    rate = "images_per_second[ranks=each,reduce=sum]=Img/sec: ([0-9.]+)"
    loss = "loss[take=last]=loss ([0-9.]+)"
    done = hidl("run", *SITE, *options, "--metric", rate, "--metric", loss, "--json", "--", *PROGRAM)
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)["steps"][0]["metrics"]
    assert (metrics["images_per_second"]["samples"], metrics["images_per_second"]["value"]) == ([401] * 4, 1604)
    assert (metrics["loss"]["value"], len(metrics["loss"]["samples"])) == (0.125, 12)


def test_copies_on_all_nodes_are_the_baseline(on_cluster: Callable[..., Hidl]) -> None:
    hidl = on_cluster("mpi")
    options = ("--scale", "1,2", "--baseline", "copies", "--repeat", "4", "--target", "0.9")
    rate = "images_per_second=Img/sec: ([0-9.]+)"
    done = hidl("run", *SITE, *options, "--metric", rate, "--json", "--", *PROGRAM, "--noisy")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"]["study"]["metric"] == "images_per_second"
