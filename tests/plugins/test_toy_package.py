"""A package with a launcher, a parser and a scheduler: installed, named by sites and workloads, used by real runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Hidl
from tests.plugins.packages import TOY, install, write_project

pytestmark = pytest.mark.real

PROGRAM = """
import os
from mpi4py import MPI

world = MPI.COMM_WORLD
started = sum(world.allgather(int(os.environ.get("TOY_LAUNCHER", 0))))
if world.rank == 0:
    print(f"world = {world.size} ranks")
    print(f"started = {started} ranks")
"""
METRICS = {name: {"unit": "ranks"} for name in ("world", "started")}


def plug_in(hidl: Hidl, project: Path, target: Path) -> None:
    """Make the project's package importable for ``hidl``."""
    known = hidl.environment["PYTHONPATH"]
    hidl.environment["PYTHONPATH"] = f"{known}:{install(project, target)}"


@pytest.fixture
def toy(hidl_with: Callable[..., Hidl], tmp_path: Path) -> Hidl:
    """hidl with stack mpi, the toy package, and a workload whose output only the toy parser reads."""
    hidl = hidl_with("mpi")
    plug_in(hidl, TOY, tmp_path / "toy")
    program = tmp_path / "prints.py"
    program.write_text(PROGRAM)
    command = {"command": ["python", "-m", "mpi4py", str(program)], "parser": "toy-pairs"}
    hidl.add_workload("prints", "toy.py", program=command, metrics=METRICS)
    return hidl


def test_its_launcher_starts_the_ranks_and_its_parser_reads_their_output(toy: Hidl) -> None:
    run = toy.json("run", "prints", "--launcher", "toy", "--ranks-per-node", "2")
    metrics = run["steps"][0]["metrics"]
    assert {name: metric["value"] for name, metric in metrics.items()} == {"world": 2.0, "started": 2.0}


def test_a_site_can_name_it_as_its_own_launcher(toy: Hidl) -> None:
    file = toy.config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: mine\ntitle: mine\nextends: local\nlaunchers: [toy]\n")
    assert toy("site", "check", "mine").returncode == 0
    shown = toy("run", "mpi-sanity", "--site", "mine", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "-launcher fork -n 1 " in shown.stdout


@pytest.fixture
def queued(toy: Hidl) -> Hidl:
    """The same, with a site whose scheduler is the package's."""
    file = toy.config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: mine\ntitle: mine\nextends: local\nscheduler: toy-queue\n")
    installed = toy("install", "mpi", "--site", "mine")
    assert installed.returncode == 0, installed.stderr
    return toy


def test_its_scheduler_runs_jobs(queued: Hidl) -> None:
    run = queued.json("run", "prints", "--site", "mine", "--ranks-per-node", "2")
    assert run["steps"][0]["metrics"]["world"]["value"] == 2.0
    (directory,) = queued.runs.iterdir()
    assert "# toy: nodes=1" in (directory / "job.sh").read_text()
    assert json.loads((directory / "job.json").read_text())["scheduler"] == "toy-queue"


@pytest.mark.deep
def test_its_scheduler_ends_jobs(queued: Hidl, tmp_path: Path) -> None:
    command = {"command": ["sleep", "60"], "parser": "toy-pairs"}
    queued.add_workload("sleeps", "toy.py", program=command, metrics=METRICS)
    run = queued.json("run", "sleeps", "--site", "mine", "--no-wait")["run"]
    assert queued("cancel", run).returncode == 0
    assert queued.json("status", run)["state"] == "CANCELLED"


@pytest.mark.deep
def test_validation_goes_through_its_scheduler(queued: Hidl) -> None:
    found = queued.json("validate", "--site", "mine", "--check", "mpi_sanity%scale=1-node")
    (case,) = found["cases"]
    assert case["verdict"] == "pass", case["reason"]
    assert json.loads((Path(case["directory"]) / "job.json").read_text())["scheduler"] == "toy-queue"


def test_it_is_proposed_and_shown(toy: Hidl) -> None:
    code = "from hidl_cli.commands.completion import candidates\n"
    code += "print(*(one.word for one in candidates(['run', 'prints', '--launcher'], 't')))"
    proposed = subprocess.run(
        [sys.executable, "-c", code], env=toy.environment, capture_output=True, text=True, check=True
    )
    assert proposed.stdout.split() == ["toy"]
    plugins = toy.json("config", "plugins")["plugins"]
    assert [(each["kind"], each["name"], each["package"], each["problem"]) for each in plugins] == [
        ("launcher", "toy", "hidl-toy 1.2", None),
        ("scheduler", "toy-queue", "hidl-toy 1.2", None),
        ("parser", "toy-pairs", "hidl-toy 1.2", None),
    ]
    assert "HD010" not in toy("doctor").stdout


def test_a_family_that_it_does_not_start_is_refused(toy: Hidl) -> None:
    ended = toy("run", "prints", "--launcher", "toy", "--stack", "openmpi", "--dry-run")
    assert ended.returncode == 3
    assert "launcher toy cannot start the ranks of openmpi (openmpi)" in " ".join(ended.stderr.split())


def test_a_broken_package_is_named(hidl: Hidl, tmp_path: Path) -> None:
    points = {"hidl.launchers": {"broken": "hidl_broken:Broken"}}
    project = write_project(tmp_path / "project", "hidl-broken", points, "import nosuchmodule\n")
    plug_in(hidl, project, tmp_path / "site")

    ended = hidl("run", "mpi-sanity", "--launcher", "broken", "--dry-run")
    said = " ".join(ended.stderr.split())
    assert ended.returncode == 4, ended.stderr
    assert "plug-in broken = hidl_broken:Broken (hidl.launchers) of package hidl-broken 0.1 cannot be loaded" in said
    assert "ModuleNotFoundError: No module named 'nosuchmodule'" in said

    findings = hidl.json("doctor", status=4)["findings"]
    (found,) = [finding for finding in findings if finding["rule"] == "HD010"]
    assert "hidl-broken 0.1" in str(found)


def test_without_the_package_its_names_are_unknown(hidl: Hidl) -> None:
    hidl.add_workload("prints", "toy.py", program={"command": ["true"], "parser": "toy-pairs"}, metrics=METRICS)
    ended = hidl("workload", "show", "prints")
    assert ended.returncode == 3
    assert "invalid `program.parser`: `toy-pairs`" in " ".join(ended.stderr.split())
    assert hidl("run", "mpi-sanity", "--launcher", "toy", "--dry-run").returncode == 2
    assert str(REPOSITORY) == hidl.environment["PYTHONPATH"]


def test_a_provider_of_a_package_plans_an_installation(hidl: Hidl, tmp_path: Path) -> None:
    code = "from hidl_cli.stack.providers.venv import FromWheels\n\n\nclass Mine(FromWheels):\n    notes = ('mine',)\n"
    points = {"hidl.providers": {"mine": "hidl_mine:Mine"}}
    plug_in(hidl, write_project(tmp_path / "project", "hidl-mine", points, code), tmp_path / "site")
    planned = hidl("install", "mpi", "--provider", "mine", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "mpi4py" in planned.stdout
    assert hidl("install", "mpi", "--provider", "nosuch", "--dry-run").returncode == 2
