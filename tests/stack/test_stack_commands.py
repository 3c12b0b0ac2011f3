"""``hidl stack list``, ``show`` and ``lock``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Hidl
from tests.stack.conftest import recipe

pytestmark = pytest.mark.real

LOCK = REPOSITORY / "recipes" / "locks" / "mpi-cp311-linux-x86_64-cpu.txt"


def test_list_knows_every_stack_and_where_it_is_installed(hidl: Hidl) -> None:
    recipe(hidl, "mine", extends="mpi", packages={})
    prefix = hidl.json("install", "mpi")["installations"][0]["prefix"]
    stacks = {stack["name"]: stack for stack in hidl.json("stack", "list")["stacks"]}
    assert {"mpi", "pytorch", "tensorflow", "mine"} <= set(stacks)
    assert stacks["mine"]["origin"] == "user"
    (installed,) = stacks["mpi"]["installations"]
    assert (installed["prefix"], installed["current"]) == (prefix, True)
    assert installed["bytes"] > 10_000_000
    assert stacks["pytorch"]["installations"] == []


def test_show_reports_recipe_lock_and_installations(hidl: Hidl) -> None:
    document = hidl.json("stack", "show", "pytorch")
    assert set(document["stack"]["packages"]) == {"mpich", "mpi4py", "numpy", "torch"}
    assert document["lock"]["file"].startswith(str(LOCK.parent))
    assert document["lock"]["packages"]["torch"].endswith("+cpu")
    assert "torch" in hidl("stack", "show", "pytorch").stdout


def test_lock_makes_a_new_one_which_the_next_installation_takes(hidl: Hidl, root: Path) -> None:
    made = hidl("stack", "lock", "mpi")
    assert made.stdout == f"{root / 'locks' / LOCK.name}\n"
    (plan,) = hidl.json("install", "mpi", "--dry-run")["plans"]
    assert plan["plan"]["lock"]["file"] == made.stdout.strip()


def test_lock_says_where_another_lock_comes_first(hidl: Hidl) -> None:
    mine = hidl.config / "locks" / LOCK.name
    mine.parent.mkdir(parents=True)
    mine.write_text(LOCK.read_text())
    assert f"{mine} takes precedence" in hidl("stack", "lock", "mpi").stderr


def test_check_says_whether_a_lock_fits_and_makes_none(hidl: Hidl, root: Path) -> None:
    fits = hidl("stack", "lock", "mpi", "--check")
    assert (fits.returncode, fits.stdout) == (0, f"{LOCK}\n")
    recipe(hidl, "mpi", packages={"mpich": ">=5.0", "mpi4py": ">=4.1", "numpy": ">=2.1"})
    stale = hidl("stack", "lock", "mpi", "--check")
    assert (stale.returncode, "numpy>=2.0 is now numpy>=2.1" in stale.stderr) == (4, True)
    assert not root.exists()


def test_a_stack_that_is_not_installed_says_how_to_install_it(hidl: Hidl, tmp_path: Path) -> None:
    for command in (["env", "mpi"], ["exec", "mpi", "--", "true"]):
        refused = hidl("stack", *command)
        assert (refused.returncode, "hidl install mpi" in refused.stderr) == (4, True)
    elsewhere = hidl("stack", "env", "mpi", "--prefix", str(tmp_path / "a b"))
    assert f"hidl install mpi --prefix '{tmp_path / 'a b'}'" in elsewhere.stderr
