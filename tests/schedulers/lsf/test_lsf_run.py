"""``hidl run`` at a site that has LSF: the whole way, on one host that stands for the allocation."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import Hidl
from tests.schedulers.lsf.conftest import FakeLsf
from tests.tiers import deep
from tests.waiting import until

SITE = {
    "name": "pretend",
    "title": "a stand-in LSF on this machine",
    "scheduler": "lsf",
    "launchers": ["mpiexec"],
    "node_types": {"node": {"detect": True}},
    "partitions": {"batch": {"node_type": "node", "max_nodes": 4, "max_wall": "02:00:00"}},
    "default_partition": "batch",
    "policies": {"account": "optional"},
}
TOY = {
    "parameters": {"sleep": {"type": "float", "default": 0}, "fail": {"type": "bool", "default": False}},
    "metrics": {"rate": {"unit": "items/s", "better": "higher"}},
}


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl], lsf: FakeLsf) -> Hidl:
    """hidl with the stack mpi, the workload ``toy`` and a site whose LSF is the stand-in."""
    lsf.set(hosts={"localhost": {}})
    hidl = hidl_with("mpi")
    hidl = Hidl(hidl.environment | {"PATH": os.environ["PATH"]})
    hidl.add_workload("toy", "toy.py", **TOY)
    file = hidl.config / "sites" / "pretend.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(SITE))
    hidl.json("install", "mpi", "--site", "pretend")
    return hidl


def run(hidl: Hidl, *more: str) -> int:
    """The exit code of ``hidl run``."""
    return hidl("run", "toy", "--site", "pretend", "--nodes", "1", "--ranks-per-node", "2", *more).returncode


def only_run(hidl: Hidl) -> Path:
    (found,) = hidl.runs.iterdir()
    return found


def state(hidl: Hidl) -> str:
    """How the only run ended, by its directory."""
    return str(json.loads((only_run(hidl) / "status.json").read_text())["state"])


def test_a_run_through_lsf_ends_well(hidl: Hidl) -> None:
    assert (run(hidl), state(hidl)) == (0, "COMPLETED")


def test_a_run_that_fails_ends_so(hidl: Hidl) -> None:
    assert (run(hidl, "--set", "fail=true"), state(hidl)) == (8, "FAILED")


@pytest.mark.deep
@pytest.mark.parametrize("parse_script", [False, deep(True)])
def test_a_run_that_reaches_its_run_limit_has_timed_out(hidl: Hidl, lsf: FakeLsf, parse_script: bool) -> None:
    lsf.set(minute=2.0, interval=2.0, parse_script=parse_script)
    assert (run(hidl, "--set", "sleep=60", "--time", "1"), state(hidl)) == (8, "TIMEOUT")


def test_a_run_that_lsf_refuses_ends_hidl_with_6(hidl: Hidl, lsf: FakeLsf) -> None:
    lsf.limit(0)
    assert (run(hidl), state(hidl)) == (6, "REFUSED")


def test_an_lsf_that_is_down_ends_hidl_with_7(hidl: Hidl, lsf: FakeLsf) -> None:
    lsf.set(down=True)
    assert (run(hidl), state(hidl)) == (7, "REFUSED")


def test_a_run_that_nobody_waits_for_is_seen_and_cancelled_later(hidl: Hidl) -> None:
    run(hidl, "--set", "sleep=60", "--no-wait")
    log = only_run(hidl) / "stdout.log"
    until(lambda: log.is_file() and "rank" in log.read_text(), within=30)
    assert (hidl("cancel").returncode, state(hidl)) == (0, "CANCELLED")


def test_a_run_can_be_submitted_by_hand(hidl: Hidl) -> None:
    """As the script says of itself, from within a copy of its directory."""
    run(hidl)
    directory = only_run(hidl)
    (directory / "status.json").unlink()
    with (directory / "job.sh").open() as script:
        subprocess.run(["bsub"], stdin=script, cwd=directory, env=hidl.environment, check=True)
    file = directory / "status.json"
    until(lambda: file.is_file() and "COMPLETED" in file.read_text(), within=30)


def test_variables_of_the_user_reach_the_ranks(hidl: Hidl) -> None:
    script = "import os; print(*map(os.environ.get, ('OWN_VALUE', 'OWN_TAKEN', 'OWN_OTHER')), sep='|')"
    done = hidl(
        *["run", "--site", "pretend", "--nodes", "1", "--ranks-per-node", "2", "--no-mpi"],
        *["--env-var", "OWN_VALUE=a b;$HOME", "--env-var", "OWN_TAKEN", "--", "python", "-c", script],
        OWN_TAKEN="taken",
        OWN_OTHER="other",
    )
    assert done.returncode == 0, done.stderr
    assert (only_run(hidl) / "stdout.log").read_text().splitlines() == ["a b;$HOME|taken|other"] * 2
