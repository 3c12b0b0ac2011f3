"""``hidl install`` without a stack, of several stacks, and verified elsewhere than here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.stack.conftest import site
from tests.waiting import until

pytestmark = pytest.mark.real

IMPOSSIBLE = "name: impossible\ntitle: what nobody has\nextends: mpi\nmpi: mpich\npackages: {numpy: '==0.0.1'}\n"


@pytest.fixture
def with_impossible(hidl: Hidl) -> Hidl:
    """hidl with a stack that cannot be resolved."""
    file = hidl.config / "stacks" / "impossible.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(IMPOSSIBLE)
    return hidl


def test_without_a_stack_the_plan_of_a_site_lists_what_its_checks_use(hidl: Hidl) -> None:
    document = hidl.json("install", "--site", "frontera", "--dry-run")
    named = {plan["stack"] for plan in document["plans"]}
    assert named == {"mpi", "pytorch", "tensorflow", "horovod", "mpi4dask", "hyparflow", "dask-xgboost"}
    (omb,) = document["left_out"]
    assert (omb["stack"], "--source osu-micro-benchmarks=FILE" in omb["hint"]) == ("omb", True)
    assert {plan["verified"] for plan in document["plans"]} == {"job"}


def test_without_a_stack_those_of_the_sites_file_are_installed(hidl: Hidl) -> None:
    site(hidl, "mine", "title: mine\nextends: local\nstacks: [mpi]\n")
    (found,) = hidl.json("install", "--site", "mine")["installations"]
    assert (found["stack"], found["action"], found["verification"]["where"]) == ("mpi", "installed", "here")
    assert hidl("install", "--site", "mine").stdout.startswith("mpi: nothing to do")


def test_an_unknown_stack_in_the_sites_file_is_an_error_of_the_file(hidl: Hidl) -> None:
    site(hidl, "mine", "title: mine\nextends: local\nstacks: [mpi, nosuch]\n")
    done = hidl("install", "--site", "mine")
    assert (done.returncode, "nosuch" in done.stderr) == (3, True), done.stderr


def test_one_that_fails_does_not_stop_the_rest(with_impossible: Hidl) -> None:
    done = with_impossible("install", "impossible", "mpi")
    assert done.returncode == 5, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert ("failed" in rows["impossible"], "installed" in rows["mpi"]) == (True, True)
    again = with_impossible.json("install", "impossible", "mpi", status=5)
    assert [found["action"] for found in again["installations"]] == ["nothing to do"]
    assert [(found["stack"], found["exit_code"] > 0) for found in again["failed"]] == [("impossible", True)]


@pytest.mark.deep
def test_killed_amid_several_and_run_again_what_is_installed_stays(hidl: Hidl) -> None:
    copies = ("first", "second", "third")
    for name in copies:
        file = hidl.config / "stacks" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"name: {name}\ntitle: a copy\nextends: mpi\n")
    root = Path(hidl.environment["XDG_DATA_HOME"]) / "hidl/installations/local"
    child = hidl.start("install", *copies, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until((root / "first/current").is_symlink)
    child.kill()
    child.wait()
    kept = (root / "first/current").resolve()
    again = hidl.json("install", *copies)["installations"]
    assert [found["stack"] for found in again] == list(copies)
    assert again[0]["action"] == "nothing to do"
    assert (root / "first/current").resolve() == kept
    assert {found["action"] for found in hidl.json("install", *copies)["installations"]} == {"nothing to do"}


def test_a_single_one_keeps_its_own_exit_code(with_impossible: Hidl) -> None:
    alone = with_impossible("install", "impossible").returncode
    (failed,) = with_impossible.json("install", "impossible", status=alone)["failed"]
    assert failed["exit_code"] == alone


def test_what_is_not_verified_is_said_and_kept(hidl: Hidl) -> None:
    done = hidl("install", "mpi", "--verify", "skip")
    assert (done.returncode, "NOT VERIFIED" in done.stderr) == (0, True), done.stderr
    (manifest,) = Path(hidl.environment["XDG_DATA_HOME"]).glob("hidl/installations/local/mpi/current/manifest.json")
    assert json.loads(manifest.read_text())["verification"]["where"] == "skip"
    assert "never verified" in hidl("run", "mpi-sanity", "--dry-run").stderr
    assert "never (--verify skip)" in hidl("stack", "show", "mpi").stdout


def test_an_account_that_the_verifying_job_needs_is_asked_for_before_anything_is_downloaded(hidl: Hidl) -> None:
    done = hidl("install", "mpi", "--site", "frontier")
    status, word = (6, "--account") if shutil.which("sbatch") else (2, "sbatch not found")
    assert (done.returncode, word in done.stderr) == (status, True), done.stderr
    assert not list(Path(hidl.environment["XDG_DATA_HOME"]).glob("hidl/installations/*/mpi/*"))
