"""Processes are found by their marks, also while they go into the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hidl_twin import layout, marks
from hidl_twin.entry import OpenProcess


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys elsewhere than in /run/hidl."""
    place = tmp_path_factory.mktemp("runtime") / "hidl"
    monkeypatch.setattr(layout, "RUNTIME", place)
    monkeypatch.setattr(marks, "RUNTIME", place)


def test_a_process_that_forks_away_from_itself_is_never_lost_from_sight(tmp_path: Path) -> None:
    hop = "for _ in range(150):\n    if os.fork():\n        os._exit(0)\n    time.sleep(0.002)\n"
    command = [sys.executable, "-c", f"import os, time\n{hop}time.sleep(60)"]
    with subprocess.Popen(command, env=marks.environment(tmp_path, "hopper"), start_new_session=True) as first:
        first.wait()
        seen = [marks.find(tmp_path) for _ in range(60)]
    marks.end(marks.find(tmp_path)["hopper"], signal.SIGKILL, 5)
    assert {} not in seen


def test_a_process_that_becomes_its_program_just_now_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """execve(2) closes Popen's pipe, and goes on."""
    read, early = OpenProcess.read, iter(range(6))
    with subprocess.Popen(["sleep", "60"], env=marks.environment(tmp_path, "x")) as process:

        def read_late(self: OpenProcess, name: str) -> bytes:
            late = self.pid == process.pid and name in ("environ", "cmdline") and next(early, None) is not None
            return b"" if late else read(self, name)

        monkeypatch.setattr(OpenProcess, "read", read_late)
        found = marks.find(tmp_path)
        process.kill()
    assert found == {"x": [process.pid]}


def test_processes_are_found_as_soon_as_they_are_started(tmp_path: Path) -> None:
    for number in range(20):
        with subprocess.Popen(["sleep", "60"], env=marks.environment(tmp_path / str(number), "x")) as process:
            found = marks.find(tmp_path / str(number))
            process.kill()
        assert found == {"x": [process.pid]}


def test_a_process_of_another_cluster_is_none_of_this_one(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env=marks.environment(tmp_path / "a", "x")) as process:
        found = marks.find(tmp_path / "a"), marks.find(tmp_path), marks.find(tmp_path / "a" / "b")
        process.kill()
    assert found == ({"x": [process.pid]}, {}, {})


def test_the_environment_of_a_daemon_holds_nothing_of_the_users(tmp_path: Path) -> None:
    os.environ["HIDL_SECRET"] = "x"
    try:
        assert "HIDL_SECRET" not in marks.environment(tmp_path, "x")
    finally:
        del os.environ["HIDL_SECRET"]
