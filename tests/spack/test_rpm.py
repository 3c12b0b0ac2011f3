"""RPMs are unpacked by anybody, and nothing of them lands outside of their directory."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.spack import rpms
from tests.spack.conftest import module

rpm = module("rpm")
PREFIX = "./opt/mvapich2/gdr/2.3.7/gnu8.5.0"


@pytest.mark.parametrize("compressor", ["gzip", "xz"])
def test_files_folders_and_links_come_out(tmp_path: Path, compressor: str) -> None:
    members = [
        rpms.directory(f"{PREFIX}/bin"),
        rpms.file(f"{PREFIX}/bin/mpicc", b"#! /bin/sh\n", 0o755),
        rpms.file(f"{PREFIX}/lib64/libmpi.so.12", b"\0\1\2"),
        rpms.link(f"{PREFIX}/lib64/libmpi.so", "libmpi.so.12"),
        rpms.link(f"{PREFIX}/bin/mpi", "../lib64/libmpi.so"),
    ]
    rpms.write(tmp_path / "a.rpm", members, compressor=compressor)
    assert len(rpm.unpack(str(tmp_path / "a.rpm"), str(tmp_path / "out"))) == len(members)
    root = tmp_path / "out" / PREFIX
    assert (root / "bin/mpi").read_bytes() == b"\0\1\2"
    assert stat.S_IMODE((root / "bin/mpicc").stat().st_mode) == 0o755


def test_names_of_one_file_share_its_content(tmp_path: Path) -> None:
    """Only the last of them comes with it."""
    mode = stat.S_IFREG | 0o644
    members = [
        rpms.Member("./a", mode, b"", inode=7, links=2),
        rpms.Member("./other", mode, b"", inode=8, links=2),
        rpms.Member("./b", mode, b"content", inode=7, links=2),
    ]
    rpms.write(tmp_path / "a.rpm", members)
    rpm.unpack(str(tmp_path / "a.rpm"), str(tmp_path / "out"))
    assert [(tmp_path / "out" / name).read_bytes() for name in ("a", "b", "other")] == [b"content", b"content", b""]


def test_others_may_not_write(tmp_path: Path) -> None:
    rpms.write(tmp_path / "a.rpm", [rpms.file("./a", mode=0o777)])
    rpm.unpack(str(tmp_path / "a.rpm"), str(tmp_path / "out"))
    assert stat.S_IMODE((tmp_path / "out/a").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([rpms.file("./../evil")], "leads out"),
        ([rpms.file("./opt/../../evil")], "leads out"),
        ([rpms.file("/etc/evil")], "leads out"),
        ([rpms.link("./opt/etc", "/etc")], "link that leads out of the directory, to /etc"),
        ([rpms.link("./opt/up", "../../evil")], "link that leads out"),
        ([rpms.link("./opt/up", "deep/../../../evil")], "link that leads out"),
        ([rpms.link("./opt", "elsewhere"), rpms.file("./opt/evil")], "lies below a link"),
        ([rpms.file("./opt/evil", mode=0o4755)], "set-user-id"),
        ([rpms.file("./opt/evil", mode=0o2755)], "set-group-id"),
        ([rpms.Member("./dev/null", stat.S_IFCHR | 0o666)], "neither a file"),
    ],
)
def test_what_is_hostile_is_refused_before_anything_is_written(
    tmp_path: Path, members: list[rpms.Member], reason: str
) -> None:
    rpms.write(tmp_path / "a.rpm", [rpms.file("./innocent"), *members])
    with pytest.raises(rpm.RpmError, match=reason):
        rpm.unpack(str(tmp_path / "a.rpm"), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_payload_that_was_changed_is_refused(tmp_path: Path) -> None:
    rpms.write(tmp_path / "a.rpm", [rpms.file("./a")], digest="0" * 64)
    with pytest.raises(rpm.RpmError, match="another SHA-256 than its header says"):
        rpm.unpack(str(tmp_path / "a.rpm"), str(tmp_path / "out"))


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.rpm").write_bytes(b"<html>not found</html>")
    with pytest.raises(rpm.RpmError, match="is no RPM"):
        rpm.unpack(str(tmp_path / "a.rpm"), str(tmp_path / "out"))


@pytest.mark.parametrize("length", [100, 120, 200, -40])
def test_one_that_was_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    rpms.write(tmp_path / "a.rpm", [rpms.file("./a", b"content" * 100)])
    (tmp_path / "a.rpm").write_bytes((tmp_path / "a.rpm").read_bytes()[:length])
    with pytest.raises(rpm.RpmError, match="cannot be unpacked"):
        rpm.unpack(str(tmp_path / "a.rpm"), str(tmp_path / "out"))
