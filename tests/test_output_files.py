"""Files that the user has named for the output of a command."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from hidl_cli.capsule import Capsule
from hidl_cli.documents import write_output

PAGE = b"<!doctype html><p>new"
CAPSULES = [Capsule(f"run-{each}", "1", "mpi", "mpi.txt", {}, (), {"lock.txt": each.encode()}) for each in "ab"]


def test_an_earlier_output_is_replaced_through_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "page.html", tmp_path / "link.html"
    file.write_bytes(b"<!doctype html><p>old")
    link.symlink_to(file)
    write_output(link, PAGE)
    assert (link.is_symlink(), file.read_bytes()) == (True, PAGE)
    for capsule in CAPSULES:
        write_output(tmp_path / "a.capsule", capsule.to_bytes())
    assert (tmp_path / "a.capsule").read_bytes() == CAPSULES[1].to_bytes()


@pytest.mark.parametrize("data", [PAGE, CAPSULES[0].to_bytes()])
def test_another_file_stays(tmp_path: Path, data: bytes) -> None:
    for name, before in (("results.txt", b"precious"), ("others.zip", b"PK\x03\x04\x14\x00\x00\x00\x08\x00abcd")):
        (tmp_path / name).write_bytes(before)
        with pytest.raises(FileExistsError, match="has other contents"):
            write_output(tmp_path / name, data)
        assert (tmp_path / name).read_bytes() == before


def test_a_pipe_and_a_device_stay_what_they_are(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_output(pipe, PAGE)
    reader.join(60)
    assert (read, stat.S_ISFIFO(pipe.stat().st_mode)) == ([PAGE], True)
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_output(tmp_path / "full", PAGE)
    assert Path("/dev/full").is_char_device()


def test_a_directory_is_not_created_and_the_umask_holds(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_output(tmp_path / "mispelled" / "page.html", PAGE)
    mask = os.umask(0o077)
    try:
        write_output(tmp_path / "page.html", PAGE)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
