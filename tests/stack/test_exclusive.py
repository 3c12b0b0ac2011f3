"""The lock file: held by one at a time, and no way to a file of its user."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from hidl_cli.errors import HidlError
from hidl_cli.stack.installation import hold_lock


def test_a_link_in_the_place_of_a_lock_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious", tmp_path / "shared" / ".lock"
    precious.write_text("results of a year")
    lock.parent.mkdir()
    lock.symlink_to(precious)
    with pytest.raises(HidlError, match="it is a symbolic link"), hold_lock(lock, print):
        pass
    assert precious.read_text() == "results of a year"


def test_a_link_to_nothing_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "made")
    with pytest.raises(HidlError, match="it is a symbolic link"), hold_lock(tmp_path / ".lock", print):
        pass
    assert not (tmp_path / "made").exists()


def test_neither_another_name_of_a_file_nor_a_pipe_is_a_lock(tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious", tmp_path / ".lock"
    precious.write_text("results of a year")
    lock.hardlink_to(precious)
    with pytest.raises(HidlError, match="a hard link"), hold_lock(lock, print):
        pass
    assert precious.read_text() == "results of a year"
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(HidlError, match="it is not a regular file"), hold_lock(lock, print):
        pass


def test_only_one_at_a_time_works_where_owners_remove_the_lock(tmp_path: Path) -> None:
    """Each owner removes the file and its directory when its work is done; a newcomer then locks a new file."""
    file, inside, most = tmp_path / "of-one" / "lock", 0, 0
    counter = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with hold_lock(file, lambda _: None):
                with counter:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.001)
                with counter:
                    inside -= 1
                file.unlink()
                with suppress(OSError):
                    file.parent.rmdir()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work) for _ in range(4)]:
            future.result(timeout=60)
    assert most == 1
