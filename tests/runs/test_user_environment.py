"""``hidl run --env DIR``: real environments of users, with and without mpi4py and an MPI library of their own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.conftest import Hidl
from tests.stack.environments import conda, venv

HELLO = """
import importlib.util, json, os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
facts = {"size": world.size, "prefix": sys.prefix, "hidl": importlib.util.find_spec("hidl_workloads") is not None,
         "library": MPI.Get_library_version().split()[0], "path": os.environ.get("PYTHONPATH"),
         "script": os.environ.get("FROM_SCRIPT")}
print("\\n".join(map(json.dumps, world.gather(facts) or ())))
"""


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hidl:
    """hidl with the mpi stack, started in a directory that holds a program, without PYTHONPATH."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello.py").write_text(HELLO)
    return hidl_with("mpi")


def install(place: Path, *packages: str) -> Path:
    """Install packages, by uv."""
    command = [find_uv_bin(), "pip", "install", "-q", "-p", str(place / "bin" / "python"), *packages]
    subprocess.run(command, check=True)
    return place


def said(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (done.stdout + done.stderr).splitlines() if line.startswith('{"size"')]


def run(hidl: Hidl, *words: str) -> list[dict[str, object]]:
    """What each of two ranks of ``hello.py`` is told."""
    return said(hidl("run", *words, "--ranks-per-node", "2", "--", "python", "hello.py"))


def test_mpi4py_of_a_venv_gets_the_mpi_library_of_a_stack(hidl: Hidl, tmp_path: Path) -> None:
    place = install(venv(tmp_path / "venv"), "mpi4py")
    ranks = run(hidl, "--env", "venv")
    assert [(rank["size"], rank["prefix"], rank["library"]) for rank in ranks] == [(2, str(place), "MPICH")] * 2
    (directory,) = hidl.runs.iterdir()
    kept = json.loads((directory / "plan.json").read_text())["user_environment"]
    assert (kept["directory"], kept["kind"], kept["mpi_stack"]) == (str(place), "venv", "mpi")
    assert "mpi4py" in kept["packages"]
    assert not [*place.glob("lib/python3*/site-packages/hidl*")]


def test_an_mpi_library_in_the_environment_is_used(hidl: Hidl, tmp_path: Path) -> None:
    place = install(venv(tmp_path / "venv"), "mpi4py", "mpich", "numpy")
    done = hidl("run", "-v", "--env", "venv", "--ranks-per-node", "2", "--", "python", "hello.py")
    assert [rank["size"] for rank in said(done)] == [2, 2]
    assert f"{place}/bin/mpiexec" in done.stderr.replace("\n", "")
    sane = hidl("run", "mpi-sanity", "--env", "venv", "--ranks-per-node", "2")
    assert sane.returncode == 0, sane.stderr


def test_a_conda_environment_is_activated(hidl: Hidl, tmp_path: Path) -> None:
    place = install(conda(tmp_path / "env"), "mpi4py")
    ranks = run(hidl, "--env", str(place))
    assert [(rank["size"], rank["prefix"], rank["script"]) for rank in ranks] == [(2, str(place), f"in {place}")] * 2


def test_an_environment_without_mpi4py_serves_programs_without_mpi(hidl: Hidl, tmp_path: Path) -> None:
    venv(tmp_path / "venv")
    program = "import os; os.write(1, 'rank {RANK} of {WORLD_SIZE}\\n'.format(**os.environ).encode())"
    done = hidl("run", "--env", "venv", "--ranks-per-node", "2", "--", "python", "-c", program)
    assert done.returncode == 0, done.stderr
    (directory,) = hidl.runs.iterdir()
    assert sorted((directory / "stdout.log").read_text().splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    lacking = hidl("run", "--env", "venv", "--", "python", "hello.py")
    assert (lacking.returncode, "bin/python -m pip install mpi4py" in lacking.stderr.replace("\n", " ")) == (4, True)
    refused = hidl("run", "mpi-sanity", "--env", "venv")
    assert (refused.returncode, "has no mpi4py, which workload mpi-sanity requires" in refused.stderr) == (4, True)


def test_mpi4py_of_another_library_is_refused_before_anything_runs(hidl: Hidl, tmp_path: Path) -> None:
    place = install(venv(tmp_path / "venv"), "mpi4py")
    for module in place.glob("lib/python3*/site-packages/mpi4py/MPI.*.so"):
        if ".openmpi." not in module.name:
            module.unlink()
    asked = ("run", "--env", "venv", "--stack", "mpi", "--", "python", "hello.py")
    refused = hidl(*asked)
    assert refused.returncode == 4
    assert "HD070" in refused.stderr
    assert "built for Open MPI, but the ranks use mpich" in refused.stderr
    assert "fix: hidl run --stack openmpi --mpi stack" in refused.stderr.replace("\n", " ")
    assert not hidl.runs.exists()
    no_stack = hidl("run", "--env", "venv", "--", "python", "hello.py")
    assert (no_stack.returncode, "hidl install openmpi" in no_stack.stderr) == (4, True)


def test_a_dry_run_writes_nothing(hidl: Hidl, tmp_path: Path) -> None:
    venv(tmp_path / "venv")
    done = hidl("run", "--env", "venv", "--dry-run", "--", "python", "hello.py")
    assert (done.returncode, "/environments/" in done.stdout) == (0, True), done.stderr
    assert not hidl.runs.exists()
    assert not (Path(hidl.environment["XDG_DATA_HOME"]) / "hidl" / "installations" / "environments").exists()


def test_no_environment_is_exit_code_4(hidl: Hidl) -> None:
    done = hidl("run", "--env", "nowhere", "--", "python", "hello.py")
    assert (done.returncode, "bin/python not found" in done.stderr) == (4, True)


def test_the_ranks_of_two_nodes_run_in_it(
    on_cluster: Callable[..., Hidl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello.py").write_text(HELLO)
    place = install(conda(tmp_path / "env"), "mpi4py")
    ranks = run(on_cluster("mpi"), "--env", "env", "--site", "test-cluster", "--nodes", "2")
    assert [(rank["size"], rank["prefix"], rank["script"]) for rank in ranks] == [(4, str(place), f"in {place}")] * 4
