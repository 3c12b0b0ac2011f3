"""What uv says of its downloads, read as progress; and shown while it goes on."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from hidl_cli.stack.pip_settings import Downloads

SAID = """\
Resolved 14 packages in 476ms
Downloading numpy (16.0MiB)
Downloading torch (180.0MiB)
Downloading mpi4py (512.0KiB)
 Downloaded mpi4py
 Downloaded numpy
""".splitlines()


def test_packages_and_bytes_are_counted() -> None:
    downloads = Downloads().after_all(SAID)

    assert str(downloads) == "2 of 3 downloads, 16 of 196 MiB"
    assert downloads.under_way


def test_before_the_first_and_after_the_last_there_is_nothing_to_show() -> None:
    assert not Downloads().after_all(SAID[:1]).under_way
    assert not Downloads().after_all([*SAID, " Downloaded torch", "Prepared 14 packages in 13.14s"]).under_way


def test_a_download_that_begins_again_is_one_download() -> None:
    assert str(Downloads().after_all([*SAID, SAID[1]])) == "1 of 3 downloads, 0 of 196 MiB"


def test_what_was_never_announced_does_not_count() -> None:
    assert str(Downloads().after(" Downloaded x")) == "0 of 0 downloads, 0 of 0 MiB"


FOLLOWED = """
import sys, time
from pathlib import Path
from hidl_cli.commands.render import progress

log = Path(sys.argv[1])
with progress().step("install 14 packages", log):
    log.write_text(sys.argv[2])
    time.sleep(0.5)
"""


def followed(tmp_path: Path, stderr: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", FOLLOWED, str(tmp_path / "log"), "\n".join(SAID) + "\n"]
    return subprocess.Popen(words, stderr=stderr, env=dict(os.environ, TERM="xterm", COLUMNS="100"))


def test_a_log_gets_a_line_for_each(tmp_path: Path) -> None:
    said = followed(tmp_path, subprocess.PIPE).communicate()[1].decode()

    assert "  downloaded mpi4py (1 of 3 downloads, 0 of 196 MiB)\n" in said
    assert "  downloaded numpy (2 of 3 downloads, 16 of 196 MiB)\n" in said


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    process = followed(tmp_path, follower)
    os.close(follower)
    said = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    assert process.wait() == 0
    os.close(leader)

    assert "2 of 3 downloads, 16 of 196 MiB" in said.decode()
    assert "━" in said.decode()
