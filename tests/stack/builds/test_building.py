"""A stack that compiles something: built, cached, refused, broken off."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.stack.builds.conftest import CODE, PATCH, Tiny
from tests.stack.test_interrupted import until_gone, wait_for_step
from tests.tiers import deep
from tests.waiting import patience

pytestmark = pytest.mark.real


def versions(installed: subprocess.CompletedProcess[str]) -> str:
    """What the verification saw as the version of the extension."""
    assert installed.returncode == 0, installed.stderr
    (document,) = json.loads(installed.stdout)["installations"]
    checks = {check["name"]: check["detail"] for check in document["verification"]["checks"]}
    return str(checks["import tinyext"])


def test_it_is_built_verified_and_the_second_time_taken_from_the_cache(tiny: Tiny, tmp_path: Path) -> None:
    tiny.write()
    first = tiny.hidl("install", "tiny", "--json")
    assert versions(first) == "as it was"
    assert re.search(r"build tinyext 1.0 with \d+ jobs?", first.stderr)
    assert "CVE-0000-1: it is tiny" in first.stderr
    (document,) = json.loads(first.stdout)["installations"]
    (build,) = document["builds"]
    assert (build["name"], build["version"], set(build["against"])) == ("tinyext", "1.0", {"mpich"})
    assert list((tmp_path / "data" / "hidl" / "installations" / "logs").glob("local-tiny-*-tinyext.log"))
    again = tiny.hidl("install", "tiny", "--json", "--offline", "--prefix", str(tmp_path / "elsewhere"))
    assert versions(again) == "as it was"
    assert "install tinyext 1.0 from the build cache" in again.stderr
    assert "build tinyext" not in again.stderr
    assert "nothing to do" in tiny.hidl("install", "tiny").stdout


def test_variables_of_a_build_name_the_directory_of_what_it_requires(tiny: Tiny) -> None:
    before = "import os; assert os.listdir(os.environ['FOUND']), os.environ['FOUND']"
    tiny.write(before=before, environment={"FOUND": "{tools}/setuptools"})
    assert versions(tiny.hidl("install", "tiny", "--json")) == "as it was"


def test_a_patch_is_applied_and_makes_another_installation(tiny: Tiny) -> None:
    tiny.write_patch()
    tiny.write(patches="tiny")
    assert versions(tiny.hidl("install", "tiny", "--json")) == "patched"


def test_a_patch_that_does_not_fit_publishes_nothing(tiny: Tiny, root: Path) -> None:
    tiny.write_patch(PATCH.replace("as it was", "as it never was"))
    tiny.write(patches="tiny")
    failed = tiny.hidl("install", "tiny")
    assert failed.returncode == 5
    assert "patch 1-version.patch does not apply to tinyext.c at line 5" in failed.stderr
    assert not list(root.glob("local/tiny/*/manifest.json"))


def test_patches_that_are_not_there_are_named(tiny: Tiny) -> None:
    tiny.write(patches="tiny/9")
    missing = tiny.hidl("install", "tiny")
    assert missing.returncode == 3
    assert "patches tiny/9 of tinyext 1.0 not found" in missing.stderr


def test_a_failed_build_names_the_first_error_and_the_log(tiny: Tiny, root: Path) -> None:
    tiny.write(code=CODE.replace("NULL, -1", "nowhere, -1"))
    failed = tiny.hidl("install", "tiny")
    assert failed.returncode == 5
    assert re.search(r"failed to build tinyext 1.0: tinyext.c:2:\d+: error: .nowhere. undeclared", failed.stderr)
    (log,) = root.glob("logs/local-tiny-*-tinyext.log")
    assert str(log) in failed.stderr
    assert not list(root.glob("local/tiny/[0-9a-f]*"))


@pytest.mark.deep
def test_the_likely_cause_of_a_failed_build_is_named_with_its_fix(tiny: Tiny) -> None:
    tiny.write(code=f"#include <of_nowhere.h>\n{CODE}")
    failed = tiny.hidl("install", "tiny")
    assert failed.returncode == 5
    assert "likely cause: A header is missing (HD335)" in failed.stderr
    assert "next: load the module that has of_nowhere.h" in failed.stderr


def test_another_archive_than_the_recipe_names_is_refused(tiny: Tiny) -> None:
    tiny.write()
    tiny.archive.write_bytes(tiny.archive.read_bytes() + b"\0")
    refused = tiny.hidl("install", "tiny")
    assert refused.returncode == 5
    assert f"{tiny.archive} does not match the recipe: its SHA-256 is " in refused.stderr


def test_a_source_that_hidl_cannot_fetch_is_asked_for(tiny: Tiny, root: Path) -> None:
    tiny.write()
    tiny.archive.unlink()
    missing = tiny.hidl("install", "tiny")
    assert missing.returncode == 4
    assert "source tinyext-1.0.tar.gz of tinyext 1.0 not found" in missing.stderr
    assert f"put it into {root / 'sources'}" in missing.stderr


def test_offline_names_what_is_missing(tiny: Tiny) -> None:
    tiny.hidl("install", "mpi")
    tiny.write()
    tiny.archive.unlink()
    missing = tiny.hidl("install", "tiny", "--offline")
    assert missing.returncode == 4
    assert "neither a build of tinyext 1.0 nor its source tinyext-1.0.tar.gz was found" in missing.stderr


def test_a_missing_compiler_is_named_before_anything_is_installed(tiny: Tiny, root: Path) -> None:
    tiny.write(programs=["cc", "no-such-compiler"])
    missing = tiny.hidl("install", "tiny")
    assert missing.returncode == 4
    assert "requires no-such-compiler, which was not found on PATH" in missing.stderr
    assert not list(root.glob("local/tiny/[0-9a-f]*"))


def test_a_dry_run_reports_the_build_and_touches_nothing(tiny: Tiny, tmp_path: Path) -> None:
    tiny.write()
    tiny.hidl("stack", "lock", "tiny")
    (plan,) = tiny.hidl.json("install", "tiny", "--dry-run")["plans"]
    (build,) = plan["builds"]
    assert re.fullmatch(r"build with \d+ jobs?", build["action"])
    assert not (tmp_path / "cache" / "hidl" / "builds").exists()


def test_what_a_stack_builds_and_warns_of_is_shown(tiny: Tiny) -> None:
    tiny.write()
    shown = " ".join(tiny.hidl("stack", "show", "tiny").stdout.split())
    assert "tinyext 1.0, from tinyext-1.0.tar.gz" in shown
    assert "CVE-0000-1 it is tiny https://example.org/1" in shown


@pytest.mark.deep
@pytest.mark.parametrize("ending", [signal.SIGKILL, deep(signal.SIGINT)])
def test_broken_off_in_the_middle_it_leaves_nothing_and_goes_on(
    tiny: Tiny, root: Path, tmp_path: Path, ending: signal.Signals
) -> None:
    hold, reached = tmp_path / "hold", tmp_path / "reached"
    hold.touch()
    tiny.write(
        before=f"""
import pathlib, subprocess, time
pathlib.Path({str(reached)!r}).touch()
subprocess.run(["sh", "-c", "while [ -e {hold} ]; do sleep 0.05; done"])  # as make and its compilers
"""
    )
    child = tiny.hidl.start("install", "tiny", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_step(tmp_path, reached.name)
    child.send_signal(ending)
    child.wait(patience(30))
    until_gone(tmp_path)
    assert not list(root.glob("local/tiny/*/manifest.json"))
    hold.unlink()
    assert versions(tiny.hidl("install", "tiny", "--json")) == "as it was"
    builds = tmp_path / "cache" / "hidl" / "builds"
    assert [path.name for path in builds.iterdir() if path.name != ".locks"] == [
        path.name for path in builds.iterdir() if not path.name.startswith(".")
    ]


def test_what_is_fetched_needs_a_hash(hidl: Hidl, tiny: Tiny) -> None:
    tiny.write(source={"file": "tinyext-1.0.tar.gz", "pypi": "tinyext"})
    wrong = tiny.hidl("stack", "show", "tiny")
    assert wrong.returncode == 3
    assert "`pypi` requires `sha256`" in wrong.stderr


@pytest.mark.deep
def test_a_source_is_fetched_by_its_hash_and_kept(tiny: Tiny, tmp_path: Path) -> None:
    tiny.write()
    source = {"file": tiny.archive.name, "sha256": hashlib.sha256(tiny.archive.read_bytes()).hexdigest()}
    tiny.write(source=source | {"pypi": "tinyext"})
    house = tiny.archive.rename(tmp_path / tiny.archive.name).parent
    fetched = tiny.hidl("install", "tiny", "--json", PIP_FIND_LINKS=str(house))
    assert versions(fetched) == "as it was"
    assert list((tmp_path / "cache" / "hidl" / "sources").glob(f"*/{tiny.archive.name}"))


def test_a_fetched_source_with_another_hash_is_refused_before_it_is_run(tiny: Tiny, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    tiny.write(
        before=f"open({str(ran)!r}, 'w')",
        source={"file": tiny.archive.name, "sha256": "0" * 64, "pypi": "tinyext"},
    )
    house = tiny.archive.rename(tmp_path / tiny.archive.name).parent
    refused = tiny.hidl("install", "tiny", PIP_FIND_LINKS=str(house))
    assert (refused.returncode, ran.exists()) == (5, False)
    assert "0" * 64 in refused.stderr
