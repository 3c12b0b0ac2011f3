"""Files that the user has named for the output of a command."""

from __future__ import annotations

import os
import stat
import threading
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from hidl_cli.capsule import Capsule, is_capsule
from hidl_cli.documents import write_output
from hidl_cli.inventory import cyclonedx, is_bill
from hidl_cli.report.html import is_report
from tests.inventory.made import installation

HEAD = b'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
PAGE = HEAD + b'<meta name="generator" content="hidl">\n<style>\n</style>new'
CAPSULES = [Capsule(f"run-{each}", "1", "mpi", "mpi.txt", {}, (), {"lock.txt": each.encode()}) for each in "ab"]


def test_an_earlier_output_is_replaced_through_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "page.html", tmp_path / "link.html"
    of_hidl_0_1 = HEAD + b"<title>hidl report: all runs</title>\n<style>\n</style>old"
    for old in (PAGE.replace(b"new", b"old"), of_hidl_0_1, b""):
        file.write_bytes(old)
        link.unlink(missing_ok=True)
        link.symlink_to(file)
        write_output(link, PAGE, is_report)
        assert (link.is_symlink(), file.read_bytes()) == (True, PAGE)
    for capsule in CAPSULES:
        write_output(tmp_path / "a.capsule", capsule.to_bytes(), is_capsule)
    assert (tmp_path / "a.capsule").read_bytes() == CAPSULES[1].to_bytes()
    bill = cyclonedx(installation(tmp_path)).encode()
    for data in (bill, bill + b"\n"):
        write_output(tmp_path / "bill.json", data, is_bill)
    assert (tmp_path / "bill.json").read_bytes() == bill + b"\n"


def _archive(*names: str) -> bytes:
    """Return a zip archive whose header is that of a capsule, with other members."""
    whole = BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name in names:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, '{"schema": "of-the-user/1"}')
    return whole.getvalue()


OTHERS = {
    "text": b"precious",
    "page": HEAD + b"<title>hidl</title>\n<style>\n</style>a page about <title>hidl report: x</title>",
    "wheel": _archive("hidl/__init__.py"),
    "archive with an index": _archive("capsule.json"),
    "damaged archive": CAPSULES[0].to_bytes()[:60],
    "bill of another program": b'{\n  "bomFormat": "CycloneDX", "metadata": {"tools": [{"name": "syft"}]}}',
    "bill of another tool": b'{"metadata": {"tools": {"components": [{"name": "syft"}]}}}',
    "list": b"[1]",
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("before", [pytest.param(data, id=name) for name, data in OTHERS.items()])
@pytest.mark.parametrize("is_earlier", [is_report, is_capsule, is_bill])
def test_another_file_stays(tmp_path: Path, before: bytes, is_earlier: Callable[[Path], bool]) -> None:
    file = tmp_path / "given"
    file.write_bytes(before)
    with pytest.raises(FileExistsError, match="has other contents"):
        write_output(file, PAGE, is_earlier)
    assert file.read_bytes() == before


def test_a_pipe_and_a_device_stay_what_they_are(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_output(pipe, PAGE, is_report)
    reader.join(60)
    assert (read, stat.S_ISFIFO(pipe.stat().st_mode)) == ([PAGE], True)
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_output(tmp_path / "full", PAGE, is_report)
    assert Path("/dev/full").is_char_device()


def test_a_directory_is_not_created_and_the_umask_holds(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_output(tmp_path / "mispelled" / "page.html", PAGE, is_report)
    mask = os.umask(0o077)
    try:
        write_output(tmp_path / "page.html", PAGE, is_report)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
