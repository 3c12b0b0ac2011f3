"""What is recorded of an installation's files, and what differs from it."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

from hidl_cli.errors import BuildFailed, MissingPrecondition
from hidl_cli.stack import content

PACKAGES = "lib/python3.11/site-packages"


def digest(text: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip("=")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Files of a wheel (one beside site-packages, one whose name has a comma), one of nobody, a link, and a cache."""
    found = tmp_path / "prefix"
    for name, text in (
        (f"{PACKAGES}/toy/__init__.py", b"x = 1\n"),
        (f"{PACKAGES}/toy/a, b.txt", b"ab"),
        (f"{PACKAGES}/toy/__pycache__/__init__.cpython-311.pyc", b"compiled"),
        ("lib/libtoy.so.1", b"\x7fELF toy"),
        ("bin/own", b"#!/bin/sh\n"),
    ):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_bytes(text)
    (found / "lib/libtoy.so").symlink_to("libtoy.so.1")
    about = found / PACKAGES / "toy-1.0.dist-info"
    about.mkdir()
    rows = [f"toy/__init__.py,sha256={digest(b'x = 1' + bytes([10]))},6", f'"toy/a, b.txt",sha256={digest(b"ab")},2']
    rows += [f"../../libtoy.so.1,sha256={digest(bytes([127]) + b'ELF toy')},8", "toy-1.0.dist-info/RECORD,,"]
    # As in NumPy 1.26: Python has compiled the module again.
    rows.append(f"toy/__pycache__/__init__.cpython-311.pyc,sha256={digest(b'built')},5")
    (about / "RECORD").write_text("\n".join(rows) + "\n")
    return found


def test_all_files_are_recorded_with_who_brought_them(prefix: Path) -> None:
    recorded = content.record(prefix)
    assert {path: file.owner for path, file in recorded.files.items()} == {
        f"{PACKAGES}/toy/__init__.py": "toy==1.0",
        f"{PACKAGES}/toy/a, b.txt": "toy==1.0",
        "lib/libtoy.so.1": "toy==1.0",
        f"{PACKAGES}/toy-1.0.dist-info/RECORD": "",
        "bin/own": "",
    }
    assert recorded.links == {"lib/libtoy.so": "libtoy.so.1"}
    assert content.read(prefix) == recorded
    assert content.compare(prefix, recorded, deep=True) == content.ContentDifference(read=recorded_bytes(recorded))


def recorded_bytes(recorded: content.Content) -> int:
    return sum(file.size for file in recorded.files.values())


def test_what_differs_is_named(prefix: Path) -> None:
    recorded = content.record(prefix)
    (prefix / "bin/own").write_bytes(b"#!/bin/ks\n")  # as long as before
    (prefix / "lib/libtoy.so.1").write_bytes(b"")
    (prefix / PACKAGES / "toy/a, b.txt").unlink()
    (prefix / "lib/libtoy.so").unlink()
    (prefix / "lib/libtoy.so").symlink_to("elsewhere")
    (prefix / "lib/new.so").write_bytes(b"new")
    quick, deep = (content.compare(prefix, recorded, deep=deep) for deep in (False, True))
    assert quick.damaged == ("lib/libtoy.so", "lib/libtoy.so.1")
    assert deep.damaged == ("bin/own", "lib/libtoy.so", "lib/libtoy.so.1")
    assert quick.missing == deep.missing == (f"{PACKAGES}/toy/a, b.txt",)
    assert quick.foreign == deep.foreign == ("lib/new.so",)
    assert not quick.is_whole


def test_a_damaged_cache_is_found_when_it_is_installed_from(prefix: Path) -> None:
    (prefix / "lib/libtoy.so.1").write_bytes(b"short")
    with pytest.raises(BuildFailed, match=r"lib/libtoy.so.1") as caught:
        content.record(prefix)
    assert "uv cache clean toy" in str(caught.value.hint)
    assert not (prefix / content.FILE).exists()


def test_a_flipped_bit_in_the_cache_is_found_by_the_wheels_own_record(prefix: Path) -> None:
    (prefix / "lib/libtoy.so.1").write_bytes(b"\x7fELF tox")
    recorded = content.record(prefix)
    assert content.compare(prefix, recorded, deep=True).damaged == ("lib/libtoy.so.1",)


def test_an_installation_of_before_is_held_against_its_wheels(prefix: Path) -> None:
    (prefix / PACKAGES / "toy/__init__.py").write_bytes(b"x = 2\n")
    found = content.compare(prefix, content.read(prefix), deep=True)
    assert (found.damaged, found.missing, found.foreign) == ((f"{PACKAGES}/toy/__init__.py",), (), ())


def test_a_damaged_record_is_an_error_with_the_next_step(prefix: Path) -> None:
    (prefix / content.FILE).write_text("{}")
    with pytest.raises(MissingPrecondition, match=r"content.json cannot be read"):
        content.read(prefix)


def test_files_of_its_own_become_read_only(prefix: Path, tmp_path: Path) -> None:
    os.link(prefix / "bin/own", tmp_path / "shared")
    content.make_read_only(prefix, content.record(prefix))
    assert (prefix / "lib/libtoy.so.1").stat().st_mode & 0o222 == 0
    assert (prefix / "bin/own").stat().st_mode & 0o222 != 0
