"""Which file systems keep the locks that SQLite takes, by how they are mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.store import sqlite as locking
from hidl_cli.store.sqlite import locks_hold, mount_of

ROOT = "25 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"


@pytest.mark.parametrize(
    ("mount", "hold"),
    [
        ("- lustre 10.0.0.1@o2ib:/scratch rw,flock,lazystatfs", True),
        ("- lustre 10.0.0.1@o2ib:/scratch rw,localflock,lazystatfs", False),
        ("- lustre 10.0.0.1@o2ib:/scratch rw,lazystatfs", False),
        ("shared:7 master:1 - nfs4 server:/home rw,vers=4.2,local_lock=none", True),
        ("- nfs server:/home rw,vers=3,nolock,local_lock=all", False),
        ("- nfs server:/home rw,vers=3,local_lock=posix", False),
        ("- nfs server:/home rw,vers=3,local_lock=flock", True),
        ("- gpfs gpfs0 rw", True),
        ("- ext4 /dev/sdb rw", True),
    ],
)
def test_the_mount_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, hold: bool) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"{ROOT}\n36 25 0:40 / {tmp_path} rw,noatime {mount}\n")
    monkeypatch.setattr(locking, "_MOUNTS", mounts)
    assert locks_hold(tmp_path / "hidl") is hold


def test_the_innermost_mount_counts_and_of_two_at_one_place_the_later() -> None:
    lines = [
        "1 0 0:1 / /scratch rw - lustre a rw",
        "2 0 0:2 / /scratch/me rw - nfs4 b rw",
        "3 0 0:3 / /scratch/me rw - tmpfs c rw",
        ROOT,
        "4 0 0:4 / /scratch/m rw - xfs d rw",
    ]
    assert mount_of(Path("/scratch/me/hidl"), "\n".join(lines))[0] == "tmpfs"


def test_blanks_in_a_mount_point_are_read() -> None:
    assert mount_of(Path("/my disk/x"), f"{ROOT}\n9 1 0:9 / /my\\040disk rw - vfat e rw")[0] == "vfat"


def test_where_nothing_is_known_locks_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "_MOUNTS", tmp_path / "none")
    assert locks_hold(tmp_path)


def test_the_directory_of_this_test_can_be_locked(tmp_path: Path) -> None:
    assert locks_hold(tmp_path)
