"""Nothing of an archive lands outside of its directory."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from hidl_cli.errors import BuildFailed
from hidl_cli.stack.builds.fetch import unpack


def archive(tmp_path: Path, *members: tarfile.TarInfo) -> Path:
    file = tmp_path / "a.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return file


def member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, to, 1 if kind == tarfile.REGTYPE else 0, 0o4777
    return info


def test_it_gives_the_top_directory(tmp_path: Path) -> None:
    file = archive(tmp_path, member("top/a"), member("top/d/b"), member("top/l", tarfile.SYMTYPE, "d/../a"))
    top = unpack(file, tmp_path / "out")
    assert sorted(str(path.relative_to(top)) for path in top.rglob("*")) == ["a", "d", "d/b", "l"]
    assert (top / "a").stat().st_mode & 0o7022 == 0


@pytest.mark.parametrize(
    "evil",
    [
        member("/etc/evil"),
        member("../evil"),
        member("top/../../evil"),
        member("top/l", tarfile.SYMTYPE, "/etc"),
        member("top/l", tarfile.SYMTYPE, "../../x"),
        member("top/h", tarfile.LNKTYPE, "../x"),
        member("top/p", tarfile.FIFOTYPE),
        member("top/c", tarfile.CHRTYPE),
    ],
    ids=lambda evil: f"{evil.name}-{evil.linkname}",
)
def test_what_would_leave_it_is_refused_before_anything_is_written(tmp_path: Path, evil: tarfile.TarInfo) -> None:
    with pytest.raises(BuildFailed, match="would be outside"):
        unpack(archive(tmp_path, member("top/a"), evil), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_it_must_hold_one_directory(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="one top-level directory, not a, b"):
        unpack(archive(tmp_path, member("a/x"), member("b/x")), tmp_path / "out")


def test_a_broken_one_is_reported(tmp_path: Path) -> None:
    file = archive(tmp_path, member("top/a"))
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(BuildFailed, match="cannot be unpacked"):
        unpack(file, tmp_path / "out")
