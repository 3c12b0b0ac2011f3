"""The file of a capsule: whole or refused, also one that another tool made."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from hidl_cli.capsule import Capsule, Input, read
from hidl_cli.errors import InvalidInput, UsageError

MEMBERS = {
    "run/plan.json": b"{}",
    "run/status.json": b"{}",
    "run/metrics.json": b"{}",
    "lock.txt": b"# lock\n",
    "stack.yaml": b"name: mpi\n",
    "site.yaml": b"name: local\n",
}
CAPSULE = Capsule("a-run", "0.1.0", "mpi", "mpi.txt", {"numpy": "2.0"}, (Input("/data", 3, "ab" * 32),), MEMBERS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.capsule"


def rewritten(**changes: bytes | None) -> bytes:
    """The capsule with members changed, added or (None) left out; ``capsule.json`` stays unless it is among them."""
    with zipfile.ZipFile(io.BytesIO(CAPSULE.to_bytes())) as archive:
        members: dict[str, bytes | None] = {name: archive.read(name) for name in archive.namelist()}
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**members, **changes}.items():
            if data is not None:
                archive.writestr(name, data)
    return whole.getvalue()


def problems(file: Path, data: bytes) -> str:
    """What is said of a file that is no capsule."""
    file.write_bytes(data)
    with pytest.raises(InvalidInput) as caught:
        read(file)
    assert caught.value.hint
    return "; ".join([caught.value.message, *(problem.message for problem in caught.value.problems)])


def test_what_went_in_comes_out(file: Path) -> None:
    file.write_bytes(CAPSULE.to_bytes())
    found = read(file)
    assert (found.run, found.members, found.inputs, found.packages) == (
        CAPSULE.run,
        CAPSULE.members,
        CAPSULE.inputs,
        CAPSULE.packages,
    )


def test_the_same_run_makes_the_same_bytes() -> None:
    assert CAPSULE.to_bytes() == CAPSULE.to_bytes()


def test_a_changed_member_is_named(file: Path) -> None:
    found = problems(file, rewritten(**{"lock.txt": b"# other\n", "stack.yaml": None}))
    assert "lock.txt has changed since the capsule was made" in found
    assert "stack.yaml is missing" in found


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "run/../../x", "run/other", "capsule.json/x"])
def test_a_member_of_another_name_is_refused(file: Path, name: str) -> None:
    assert "unknown member" in problems(file, rewritten(**{name: b"x"}))


def test_no_more_is_unpacked_than_a_capsule_may_hold(file: Path) -> None:
    assert "run/stdout.log is too large" in problems(file, rewritten(**{"run/stdout.log": bytes(40 << 20)}))


@pytest.mark.parametrize(
    "data",
    [b"", b"PK", CAPSULE.to_bytes()[:-30], CAPSULE.to_bytes()[:200], b"x" * 5000],
    ids=["0", "2", "cut", "head", "x"],
)
def test_another_file_is_refused(file: Path, data: bytes) -> None:
    assert "not a capsule" in problems(file, data)


@pytest.mark.parametrize("position", range(0, len(CAPSULE.to_bytes()), 61))
def test_a_flipped_bit_is_noticed_or_harmless(file: Path, position: int) -> None:
    data = bytearray(CAPSULE.to_bytes())
    data[position] ^= 4
    file.write_bytes(data)
    try:
        found = read(file)
    except InvalidInput:
        return
    assert found.members == CAPSULE.members


@pytest.mark.parametrize(
    "index",
    [b"\xff", b"[]", b"{}", b"[" * 100_000, json.dumps({"schema": "hidl.capsule/1", "run": 1}).encode()],
    ids=["not text", "a list", "empty", "nested", "fields missing"],
)
def test_an_index_of_another_form_is_refused(file: Path, index: bytes) -> None:
    assert "capsule.json" in problems(file, rewritten(**{"capsule.json": index}))


@pytest.mark.parametrize("key", ["lock_name", "stack"])
@pytest.mark.parametrize("name", ["../x.txt", "/x.txt", "..", "", "a\nb", "a\0b", "a" * 256])
def test_no_name_leads_to_another_place(file: Path, key: str, name: str) -> None:
    with zipfile.ZipFile(io.BytesIO(CAPSULE.to_bytes())) as archive:
        index = json.loads(archive.read("capsule.json"))
    index[key] = name
    assert "capsule.json is invalid" in problems(file, rewritten(**{"capsule.json": json.dumps(index).encode()}))


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "none.capsule")
    with pytest.raises(UsageError, match="directory"):
        read(tmp_path)
