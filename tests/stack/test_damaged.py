"""Damaged files of a real installation: named by verify and doctor, the cause of a failed run, and repaired."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.stack.conftest import recipe, site
from tests.stack.wheelhouse import make_wheel
from tests.tiers import deep

pytestmark = pytest.mark.real

LIBRARY = "lib/libmpi.so.12"


@pytest.fixture
def root(hidl_with: Callable[..., Hidl], tmp_path: Path) -> tuple[Hidl, Path]:
    """hidl, and the prefix of an installation of stack mpi that nobody else uses."""
    hidl = hidl_with("mpi")
    installed = hidl("install", "mpi", "--prefix", str(tmp_path / "stacks"))
    assert installed.returncode == 0, installed.stderr
    return hidl, (tmp_path / "stacks/local/mpi/current").resolve()


def truncate(file: Path) -> None:
    os.truncate(file, 0)


def flip(file: Path) -> None:
    text = bytearray(file.read_bytes())
    text[len(text) // 2] ^= 1
    file.write_bytes(text)


def replace(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"#!/bin/sh\n")
    other.replace(file)


@pytest.mark.parametrize("damage", [deep(truncate), flip, deep(Path.unlink), deep(replace)])
def test_it_is_named_and_repaired_and_no_other_stack_is_touched(
    damage: Callable[[Path], None], root: tuple[Hidl, Path], stack_prefix: Callable[[str], Path]
) -> None:
    hidl, prefix = root
    where = ("--prefix", str(prefix.parents[2]))
    library = prefix / LIBRARY
    assert library.stat().st_nlink == 1
    assert library.stat().st_mode & 0o222 == 0
    library.chmod(0o755)
    damage(library)

    doctor = hidl("doctor", "--stack", "mpi", *where, "--deep", "--json")
    (found,) = (each for each in json.loads(doctor.stdout)["findings"] if each["rule"] == "HD085")
    assert doctor.returncode == 4
    assert LIBRARY in found["seen"]
    named = hidl("stack", "verify", "mpi", *where)
    assert named.returncode == 4
    assert LIBRARY in named.stderr.replace("\n", "")

    with (library if library.exists() else Path(os.devnull)).open("rb") as opened:  # as a job that runs
        before = opened.read()
        repaired = hidl("stack", "verify", "mpi", "--repair", *where, "--json")
        opened.seek(0)
        assert opened.read() == before
    assert repaired.returncode == 0, repaired.stderr
    (one,) = json.loads(repaired.stdout)["installations"]
    assert one["repaired"] == [LIBRARY]
    assert hidl("stack", "verify", "--all", *where).returncode == 0
    assert library.read_bytes() == (stack_prefix("mpi") / LIBRARY).read_bytes()
    assert {path.name for path in prefix.parent.iterdir()} == {".lock", prefix.name, "current"}


def test_the_doctor_sees_sizes_at_once(root: tuple[Hidl, Path]) -> None:
    hidl, prefix = root
    (prefix / LIBRARY).chmod(0o755)
    truncate(prefix / LIBRARY)
    doctor = hidl("doctor", "--stack", "mpi", "--prefix", str(prefix.parents[2]))
    assert doctor.returncode == 4
    assert "HD085" in doctor.stdout + doctor.stderr


def test_a_damaged_file_is_the_cause_of_a_failed_run(root: tuple[Hidl, Path]) -> None:
    hidl, prefix = root
    (prefix / LIBRARY).chmod(0o755)
    truncate(prefix / LIBRARY)
    failed = hidl("run", "mpi-sanity", "--ranks-per-node", "2", "--prefix", str(prefix.parents[2]))
    assert failed.returncode == 8, failed.stderr
    assert "hidl stack verify mpi --repair" in failed.stderr
    (run,) = hidl.runs.iterdir()
    assert json.loads((run / "causes.json").read_text())["findings"][0]["rule"] == "HD085"


@pytest.mark.deep
def test_a_damaged_cache_is_passed_by(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl, cache = hidl_with("mpi"), tmp_path / "cache"
    where = ("--prefix", str(tmp_path / "stacks"))
    installed = hidl("install", "mpi", *where, UV_CACHE_DIR=str(cache))
    assert installed.returncode == 0, installed.stderr
    prefix = (tmp_path / "stacks/local/mpi/current").resolve()
    (cached,) = (file for file in cache.rglob("libmpi.so.12") if not file.is_symlink())
    for file in (cached, prefix / LIBRARY):
        file.chmod(0o755)
        flip(file)
    repaired = hidl("stack", "verify", "mpi", "--repair", *where, "--json", UV_CACHE_DIR=str(cache))
    assert repaired.returncode == 0, repaired.stderr
    assert hidl("stack", "verify", "mpi", *where).returncode == 0


def test_a_stack_for_the_gpus_of_another_partition_is_repaired_as_such(
    hidl_with: Callable[..., Hidl], tmp_path: Path
) -> None:
    hidl = hidl_with("mpi")
    site(
        hidl,
        "mixed",
        "title: ''\nscheduler: local\nlaunchers: [mpiexec]\ndefault_partition: main\n"
        "node_types: {cpu: {gpus: 0}, gpu: {gpus: 2, gpu_model: NVIDIA A100}}\n"
        "partitions: {main: {node_type: cpu}, gpu: {node_type: gpu}}\n",
    )
    make_wheel(tmp_path / "house", "forgpus", "1.0")
    variants = {"cuda": {"requirements": ["forgpus"], "imports": ["forgpus"]}}
    recipe(hidl, "more", extends="mpi", packages={}, devices=["cpu", "gpu"], variants=variants)
    house = {"PIP_FIND_LINKS": str(tmp_path / "house")}
    installed = hidl("install", "more", "--site", "mixed", "--device", "gpu", **house)
    assert installed.returncode == 0, installed.stderr
    (shown,) = hidl.json("stack", "show", "more", "--site", "mixed")["installations"]
    file = Path(shown["prefix"]) / LIBRARY
    file.chmod(0o755)
    flip(file)
    repaired = hidl("stack", "verify", "more", "--site", "mixed", "--repair", **house)
    assert repaired.returncode == 0, repaired.stderr


def test_with_hard_links_files_are_shared_and_stay_writable(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = hidl_with("mpi")
    installed = hidl("install", "mpi", "--link", "hard", "--prefix", str(tmp_path / "stacks"))
    assert installed.returncode == 0, installed.stderr
    library = (tmp_path / "stacks/local/mpi/current" / LIBRARY).stat()
    assert library.st_nlink > 1
    assert library.st_mode & 0o200 != 0
    refused = hidl("install", "mpi", "--link", "soft", "--prefix", str(tmp_path / "other"))
    assert (refused.returncode, "copy or hard" in refused.stderr) == (2, True)


def test_a_stack_that_is_not_installed_is_an_error(hidl: Hidl) -> None:
    missing = hidl("stack", "verify", "mpi")
    assert missing.returncode == 4
    assert "hidl install mpi" in missing.stderr


def test_a_missing_interpreter_is_named(root: tuple[Hidl, Path]) -> None:
    hidl, prefix = root
    python = prefix / "bin" / "python"
    python.unlink()
    python.symlink_to("/no/such/python3")
    run = hidl("run", "mpi-sanity", "--prefix", str(prefix.parents[2]))
    assert f"its interpreter {python} (a link to /no/such/python3) is missing" in run.stderr
    assert "next: hidl install mpi" in run.stderr
