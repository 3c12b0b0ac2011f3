"""``hidl stack use`` and ``rollback``: which installation of a stack is in use."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Hidl
from tests.stack.conftest import can_pin, recipe
from tests.tiers import deep
from tests.waiting import patience

pytestmark = pytest.mark.real

Make = Callable[..., Path]


@pytest.fixture
def made(hidl: Hidl) -> Make:
    """Installs the stack ``mine`` with these packages beside MPI's; returns its prefix."""

    def install(*packages: str) -> Path:
        recipe(hidl, "mine", packages=dict.fromkeys(["mpich", "mpi4py", *packages], ""))
        return Path(hidl.json("install", "mine")["installations"][0]["prefix"])

    return install


@pytest.fixture
def old_and_new(made: Make) -> tuple[Path, Path]:
    """Two installations of ``mine``: without attrs, then with it, which is in use."""
    return made(), made("attrs")


def has_attrs(hidl: Hidl) -> bool:
    return hidl("stack", "exec", "mine", "--", "python", "-c", "import attrs").returncode == 0


def test_another_one_is_used_by_the_start_of_its_id(hidl: Hidl, root: Path, old_and_new: tuple[Path, Path]) -> None:
    old, new = old_and_new
    assert has_attrs(hidl)
    document = hidl.json("stack", "use", "mine", old.name[:6])
    assert document == {
        "schema": "hidl.use/1",
        "stack": "mine",
        "site": "local",
        "used": old.name,
        "prefix": str(old),
        "before": new.name,
    }
    assert not has_attrs(hidl)
    assert f"ModulesVersion {old.name}\n" in (root / "modulefiles/local/mine/.version").read_text()
    assert hidl("stack", "use", "mine", old.name).stdout == f"mine: {old} is in use (already)\n"


def test_ids_are_completed(hidl: Hidl, old_and_new: tuple[Path, Path]) -> None:
    told = hidl(_HIDL_COMPLETE="complete_bash", COMP_WORDS="hidl\nstack\nuse\nmine\n", COMP_CWORD="4")
    assert set(told.stdout.split()) == {prefix.name for prefix in old_and_new}


def test_a_rollback_and_another_one_that_takes_it_back(hidl: Hidl, old_and_new: tuple[Path, Path]) -> None:
    used = [hidl.json("stack", "rollback", "mine")["prefix"] for _ in range(2)]
    assert used == [str(prefix) for prefix in old_and_new]
    assert has_attrs(hidl)


def test_after_hidl_install_has_switched_a_rollback_leads_back(hidl: Hidl, made: Make) -> None:
    old, new = made(), made("attrs")
    assert made() == old
    assert hidl.json("stack", "rollback", "mine")["prefix"] == str(new)


@pytest.mark.deep
def test_a_run_under_way_keeps_the_one_that_it_started_with(
    hidl: Hidl, old_and_new: tuple[Path, Path], tmp_path: Path
) -> None:
    began = tmp_path / "began"
    program = f"import pathlib, time; pathlib.Path({str(began)!r}).touch(); time.sleep(5); import attrs"
    options = ("--site", "local", "--stack", "mine", "--ranks-per-node", "1", "--no-mpi")
    with hidl.start("run", *options, "--", "python", "-c", program, stderr=subprocess.PIPE) as run:
        while not began.exists():
            assert run.poll() is None, run.communicate()
            time.sleep(0.05)
        assert hidl("stack", "rollback", "mine").returncode == 0
        assert not has_attrs(hidl)
        assert run.wait(patience(60)) == 0


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("use", "mine", "ffffffffffff"), 4, "has no installation 'ffffffffffff'"),
        (("use", "mine", ""), 4, "has no installation ''"),
        (("use", "mine", "../../mpi"), 4, "has no installation"),
        (("rollback", "mine"), 4, "there is no previous installation"),
        (("use", "unheard-of", "00"), 4, "has no installation"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(
    hidl: Hidl, made: Make, words: tuple[str, ...], status: int, told: str
) -> None:
    prefix = made()
    refused = hidl("stack", *words)
    assert (refused.returncode, told in refused.stderr) == (status, True)
    assert (f"{prefix.name} (in use)" in refused.stderr) == (words[1] == "mine")


@pytest.mark.deep
def test_one_that_is_gone_is_no_rollback(hidl: Hidl, old_and_new: tuple[Path, Path]) -> None:
    (old_and_new[0] / "manifest.json").unlink()
    refused = hidl("stack", "rollback", "mine")
    assert (refused.returncode, "missing or damaged" in refused.stderr) == (4, True)
    assert has_attrs(hidl)


@pytest.mark.deep
def test_one_of_another_hidl_is_not_used(hidl: Hidl, old_and_new: tuple[Path, Path]) -> None:
    manifest = old_and_new[0] / "manifest.json"
    document: dict[str, Any] = json.loads(manifest.read_text())
    document["own"] = {name: {**wheel, "digest": "0" * 64} for name, wheel in document["own"].items()}
    manifest.chmod(0o644)
    manifest.write_text(json.dumps(document))
    refused = hidl("stack", "rollback", "mine")
    assert (refused.returncode, "another version of hidl" in refused.stderr) == (4, True)
    assert has_attrs(hidl)


@pytest.mark.parametrize("words", [deep(("stack", "rollback", "mine")), ("uninstall", "mine")])
@pytest.mark.skipif(not can_pin(), reason="NEEDS chattr: no file can be made immutable here")
def test_who_may_not_change_it_is_told_so(hidl: Hidl, old_and_new: tuple[Path, Path], words: tuple[str, ...]) -> None:
    lock = old_and_new[0].with_name(".lock")
    subprocess.run(["chattr", "+i", lock], check=True)
    try:
        refused = hidl(*words)
    finally:
        subprocess.run(["chattr", "-i", lock], check=True)
    assert (refused.returncode, f"cannot change the installations in {lock.parent}" in refused.stderr) == (4, True)
    assert has_attrs(hidl)


@pytest.mark.deep
def test_uninstalling_the_one_in_use_leaves_what_can_be_used(hidl: Hidl, old_and_new: tuple[Path, Path]) -> None:
    old, new = old_and_new
    assert hidl("uninstall", "mine").returncode == 0
    assert not new.exists()
    document = hidl.json("stack", "rollback", "mine")
    assert (document["prefix"], document["before"]) == (str(old), None)
