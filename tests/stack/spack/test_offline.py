"""What an air-gapped machine has is compared with the lock, and what is missing is named."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.errors import MissingPrecondition
from hidl_cli.stack.lock import Lock
from hidl_cli.stack.providers.spack.call import refuse_what_is_missing
from hidl_cli.stack.providers.spack.environment import SpackPart, environment
from hidl_cli.stack.providers.spack.host import Instance, Places
from hidl_cli.stack.providers.spack.lock import SpackLock
from tests.stack.spack.conftest import site, stack

CONTENT = b"the source"


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """A mirror with the source of package a; b has none."""
    place = tmp_path / "mirror"
    source = place / "sources" / "a" / "a-1.tar.gz"
    source.parent.mkdir(parents=True)
    source.write_bytes(CONTENT)
    brought = {
        "hash-a": {"name": "a", "version": "1", "files": {"a/a-1.tar.gz": hashlib.sha256(CONTENT).hexdigest()}},
        "hash-b": {"name": "b", "version": "2", "files": {}},
    }
    (place / "manifest.json").write_text(json.dumps({"schema": "hidl.mirror/1", "packages": brought}))
    return place


def part(where: Places, tmp_path: Path, mirror: Path | None, *names: str) -> SpackPart:
    """A plan of these packages and of an external MPICH."""
    specs = {f"hash-{name}": {"name": name, "version": str(number)} for number, name in enumerate(names, start=1)}
    specs["hash-mpich"] = {"name": "mpich", "version": "4", "external": {"path": "/usr"}}
    content = {"roots": [{"hash": f"hash-{names[0]}", "spec": names[0]}], "concrete_specs": specs}
    wheels = Lock("mpi", "cp311", "linux-x86_64", None, "cpu", (), ())
    lock = SpackLock("mpi", "here", "1.2.0", "0", {}, content, wheels)
    places = replace(where, root=tmp_path, mirror=mirror)
    made = environment(site(), stack(), places, view=Path("view"), release=(1, 2))
    return SpackPart(Instance(Path("/spack"), "1.2.0", (1, 2)), made, lock, places, None)


def test_a_whole_mirror_serves_and_externals_need_no_source(where: Places, tmp_path: Path, mirror: Path) -> None:
    refuse_what_is_missing(part(where, tmp_path, mirror, "a", "b"), "mpi")


def test_every_package_that_was_not_brought_is_named(where: Places, tmp_path: Path, mirror: Path) -> None:
    with pytest.raises(MissingPrecondition, match=r"missing: c 3, d 4$"):
        refuse_what_is_missing(part(where, tmp_path, mirror, "a", "b", "c", "d"), "mpi")


def test_a_file_that_is_gone_is_named(where: Places, tmp_path: Path, mirror: Path) -> None:
    (mirror / "sources" / "a" / "a-1.tar.gz").unlink()
    with pytest.raises(MissingPrecondition, match=r"a 1 \(a/a-1.tar.gz\)"):
        refuse_what_is_missing(part(where, tmp_path, mirror, "a"), "mpi")


def test_a_damaged_file_is_named(where: Places, tmp_path: Path, mirror: Path) -> None:
    (mirror / "sources" / "a" / "a-1.tar.gz").write_bytes(b"other")
    with pytest.raises(MissingPrecondition, match="is damaged: its SHA-256"):
        refuse_what_is_missing(part(where, tmp_path, mirror, "a"), "mpi")


def test_what_is_built_already_needs_no_source(where: Places, tmp_path: Path, mirror: Path) -> None:
    index = tmp_path / "spack" / "store" / ".spack-db" / "index.json"
    index.parent.mkdir(parents=True)
    index.write_text(json.dumps({"database": {"installs": {"hash-c": {"installed": True}}}}))
    refuse_what_is_missing(part(where, tmp_path, mirror, "a", "b", "c"), "mpi")


def test_a_directory_that_nobody_fetched_to_is_reported(where: Places, tmp_path: Path) -> None:
    with pytest.raises(MissingPrecondition, match="was not created by `hidl stack fetch`"):
        refuse_what_is_missing(part(where, tmp_path, tmp_path / "empty", "a"), "mpi")


def test_without_any_repository_of_packages_that_is_named(where: Places, tmp_path: Path, mirror: Path) -> None:
    with pytest.raises(MissingPrecondition, match="Spack's packages"):
        refuse_what_is_missing(part(replace(where, builtin=None), tmp_path, mirror, "a"), "mpi")
