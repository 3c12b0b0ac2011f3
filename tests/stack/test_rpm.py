"""Stacks on an MPI library from an RPM: unpacked by a user, with all that an RPM must not do refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hidl_cli.errors import BuildFailed
from hidl_cli.stack.providers import rpm as unpacking
from tests.conftest import Hidl
from tests.spack import rpms

pytestmark = pytest.mark.real

TOP = "opt/mvapich2/gdr/2.3.7/mpirun/gnu"


def made(rpm: Path, members: list[rpms.Member], digest: str | None = None) -> Path:
    """The RPM ``rpm``, written."""
    rpms.write(rpm, members, compressor="gzip", digest=digest)
    return rpm


@pytest.fixture(scope="module")
def rpm(stack_prefix: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real MPI library as an RPM: MPICH under the name and in the place of MVAPICH2-GDR."""
    prefix = stack_prefix("mpi")
    tree = tmp_path_factory.mktemp("rpm") / "tree"
    for pattern in ("bin/mpi*", "bin/hydra*", "lib/*.so*", "lib/mpich/**/*", "include/mpi*"):
        for path in prefix.glob(pattern):
            copy = tree / path.relative_to(prefix)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                copy.write_bytes(path.read_bytes())
                copy.chmod(path.stat().st_mode)
    (tree / "bin" / "mpicc").write_text(f'#!/bin/sh\nprefix=/{TOP}\nexec gcc -I$prefix/include "$@"\n')
    (tree / "bin" / "mpicc").chmod(0o755)
    members = rpms.below(tree, f"/{TOP}", ["bin", "lib", "include"])
    return made(tree.parent / "mvapich2-gdr-cuda11.6-gnu-2.3.7-1.el7.x86_64.rpm", members)


@pytest.fixture(scope="module")
def installed(rpm: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Stack mpi with the library of that RPM, installed and verified on 2 ranks by hidl."""
    from tests.conftest import _environment

    root = tmp_path_factory.mktemp("with-rpm")
    hidl = Hidl(_environment(root, root / "data"))
    (manifest,) = hidl.json("install", "mpi", "--provider", "rpm", "--source", f"mvapich2-gdr={rpm}")["installations"]
    assert isinstance(manifest, dict)
    return manifest


def test_its_ranks_run_on_the_library_of_the_rpm(installed: dict[str, Any]) -> None:
    assert all(check["ok"] for check in installed["verification"]["checks"])


def test_the_manifest_names_the_family_and_the_version_of_the_library(installed: dict[str, Any]) -> None:
    assert installed["mpi"] == {"family": "mvapich2-gdr", "version": "2.3.7"}


def test_no_other_mpi_library_is_in_the_prefix(installed: dict[str, Any]) -> None:
    assert not list(Path(installed["prefix"]).glob("lib/python*/site-packages/mpich*"))


def test_the_compiler_wrapper_names_the_place_where_the_library_is(installed: dict[str, Any]) -> None:
    place = Path(installed["prefix"]) / "mpi"
    assert f"prefix={place}\n" in (place / "bin" / "mpicc").read_text()


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (rpms.file("../outside"), "leads out"),
        (rpms.file("opt/../../outside"), "leads out"),
        (rpms.file("/etc/outside"), "leads out"),
        (rpms.link("opt/x", "/etc/passwd"), "link that leads out"),
        (rpms.link("opt/x", "../../etc"), "link that leads out"),
        (rpms.file("opt/su", mode=0o4755), "set-user-id"),
        (rpms.Member("opt/device", 0o020600), "neither a file"),
    ],
)
def test_what_an_rpm_must_not_hold_is_refused_before_anything_is_written(
    tmp_path: Path, bad: rpms.Member, why: str
) -> None:
    rpm = made(tmp_path / "bad.rpm", [rpms.file(f"{TOP}/bin/mpicc"), bad])
    (tmp_path / "place").mkdir()
    with pytest.raises(BuildFailed, match=why):
        unpacking.install(rpm, tmp_path / "place" / "mpi")
    assert list((tmp_path / "place").iterdir()) == []


def test_an_rpm_whose_payload_is_not_what_its_header_says_is_refused(tmp_path: Path) -> None:
    rpm = made(tmp_path / "x.rpm", [rpms.file(f"{TOP}/bin/mpicc")], digest="0" * 64)
    with pytest.raises(BuildFailed, match="another SHA-256"):
        unpacking.install(rpm, tmp_path / "mpi")


def test_an_rpm_of_something_else_is_refused(tmp_path: Path) -> None:
    rpm = made(tmp_path / "x.rpm", [rpms.file("usr/bin/vi")])
    with pytest.raises(BuildFailed, match="got 0"):
        unpacking.install(rpm, tmp_path / "mpi")


def test_binaries_and_links_stay_as_they_are_when_paths_are_rewritten(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "binary").write_bytes(b"\0/old/place")
    (tmp_path / "bin" / "script").write_text("prefix=/old/place\n")
    (tmp_path / "bin" / "link").symlink_to("script")
    assert unpacking.rewrite(tmp_path, old="/old/place", new="/new") == [tmp_path / "bin" / "script"]


def test_no_rpm_is_a_missing_precondition_that_says_how_to_name_one(hidl: Hidl) -> None:
    failed = hidl("install", "mpi", "--provider", "rpm")
    assert (failed.returncode, "--source mvapich2-gdr=FILE.rpm" in failed.stderr) == (4, True)


def test_an_rpm_with_another_checksum_than_the_site_says_is_not_used(hidl: Hidl, tmp_path: Path) -> None:
    rpm = made(tmp_path / "mvapich2-gdr-2.3.7-1.el7.x86_64.rpm", [rpms.file(f"{TOP}/bin/mpicc")])
    site = hidl.config / "sites" / "here.yaml"
    site.parent.mkdir(parents=True)
    site.write_text(
        "name: here\ntitle: a site\nextends: local\ninstall: {provider: rpm}\n"
        f"rpms: {{mvapich2-gdr: {{file: {rpm}, sha256: {'a' * 64}}}}}\n"
    )
    failed = hidl("install", "mpi", "--site", "here")
    assert (failed.returncode, "its SHA-256 is" in failed.stderr) == (5, True)


def test_a_stack_that_compiles_against_its_own_mpi_is_refused(hidl: Hidl, tmp_path: Path) -> None:
    rpm = made(tmp_path / "mvapich2-gdr-2.3.7-1.el7.x86_64.rpm", [rpms.file(f"{TOP}/bin/mpicc")])
    failed = hidl("install", "horovod", "--provider", "rpm", "--source", f"mvapich2-gdr={rpm}")
    assert (failed.returncode, "builds horovod" in failed.stderr) == (2, True)
