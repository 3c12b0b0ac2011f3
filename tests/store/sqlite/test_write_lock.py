"""One writer at a time, who is named; a dead one blocks nobody, and no clock is trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hidl_cli.store import sqlite as writers
from hidl_cli.store.sqlite import Busy, hold_lock, sweep

pytestmark = pytest.mark.real

REPOSITORY = Path(__file__).parents[3]
HOLD = """
import sys, time; from pathlib import Path; from hidl_cli.store.sqlite import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
COUNT = """
import sys; from pathlib import Path; from hidl_cli.store.sqlite import hold_lock
file = Path(sys.argv[2])
for _ in range(50):
    with hold_lock(Path(sys.argv[1])):
        file.write_text(str(int(file.read_text()) + 1))
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def holder(lock: Path) -> subprocess.Popen[str]:
    """Another process that has the lock."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", HOLD, lock], cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def elsewhere(lock: Path, **more: object) -> None:
    """A lock of another machine."""
    owner = {"token": "t", "pid": 1, "started": "1", "place": "elsewhere", "host": "node7", "user": "ada", "since": "x"}
    lock.write_text(json.dumps(owner | more), encoding="utf-8")


def test_processes_take_turns(lock: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("0")
    counting = [subprocess.Popen([sys.executable, "-c", COUNT, lock, count], cwd=REPOSITORY) for _ in range(4)]
    assert [process.wait() for process in counting] == [0] * 4
    assert count.read_text() == "200"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["count"]


def test_a_waiting_process_is_reported_the_owner(lock: Path) -> None:
    with holder(lock) as process:
        told: list[str] = []
        with pytest.raises(Busy, match=f"hidl with pid {process.pid} of .* on {os.uname().nodename}"):
            hold_lock(lock, on_wait=told.append, at_most=1.5).__enter__()
        assert f"waiting for hidl with pid {process.pid}" in told[0]
        process.communicate()
    assert not list(lock.parent.iterdir())


def test_the_lock_of_a_killed_process_goes_at_once(lock: Path) -> None:
    process = holder(lock)
    process.kill()
    process.communicate()
    assert lock.exists()
    with hold_lock(lock, at_most=0.5):
        pass
    assert not list(lock.parent.iterdir())


def test_what_a_killed_waiter_left_is_swept(lock: Path) -> None:
    with hold_lock(lock):
        command = [sys.executable, "-c", HOLD, lock]
        with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE) as waiter:
            while not any(file.stat().st_size for file in lock.parent.glob("lock.*")):
                time.sleep(0.01)
            waiter.kill()
        sweep(lock)
        assert list(lock.parent.iterdir()) == [lock]


def test_one_killed_before_it_wrote_its_name_is_swept_later(lock: Path) -> None:
    unnamed = lock.with_name("lock.0123456789abcdef")
    with hold_lock(lock):
        unnamed.touch()
        sweep(lock)
        assert unnamed.exists()
        past = time.time() - writers.PATIENCE - 1
        os.utime(unnamed, (past, past))
        sweep(lock)
        assert list(lock.parent.iterdir()) == [lock]


def test_a_process_of_the_same_number_is_another(lock: Path) -> None:
    with hold_lock(lock):
        owner = json.loads(lock.read_text())
    lock.write_text(json.dumps(owner | {"started": "1", "token": "earlier"}))
    with hold_lock(lock, at_most=0.5):
        pass


def test_a_process_that_hides_is_alive(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``hidepid``: /proc does not show the processes of others, kill(2) tells them from those that ended."""
    with holder(lock) as process:
        monkeypatch.setattr(writers, "_started", lambda _: None)
        with pytest.raises(Busy):
            hold_lock(lock, at_most=0.3).__enter__()
        process.communicate()


@pytest.mark.parametrize("years", [-40, 0, 40])
def test_a_lock_of_another_machine_is_kept_whatever_its_clock_says(lock: Path, years: int) -> None:
    elsewhere(lock)
    then = time.time() + years * 365 * 86400
    os.utime(lock, (then, then))
    with pytest.raises(Busy, match="pid 1 of ada on node7"):
        hold_lock(lock, at_most=0.3).__enter__()
    assert lock.exists()


def test_a_lock_of_another_machine_that_stays_the_same_for_long_was_left(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(lock)
    monkeypatch.setattr(writers, "PATIENCE", 0.3)
    with hold_lock(lock, at_most=30):
        assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_a_process_that_lost_the_lock_meanwhile_learns_it_and_leaves_it_to_its_owner(lock: Path) -> None:
    with hold_lock(lock) as mine:
        elsewhere(lock, token="new")
        with pytest.raises(Busy, match=r"hidl with pid 1 of ada on node7, since x took over"):
            mine.confirm()
    assert json.loads(lock.read_text())["token"] == "new"


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"', "{}"])
def test_a_lock_that_says_nothing_is_waited_for(lock: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.write_text(content)
    with pytest.raises(Busy, match="another hidl"):
        hold_lock(lock, at_most=0.2).__enter__()
    monkeypatch.setattr(writers, "PATIENCE", 0.2)
    with hold_lock(lock, at_most=30):
        pass
