"""Processes are found by their marks, also while they go into the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hidl_cli.cluster import marks


def test_a_process_that_forks_away_from_itself_is_never_lost_from_sight(tmp_path: Path) -> None:
    hop = "for _ in range(150):\n    if os.fork():\n        os._exit(0)\n    time.sleep(0.002)\n"
    command = [sys.executable, "-c", f"import os, time\n{hop}time.sleep(60)"]
    with subprocess.Popen(command, env=marks.environment(tmp_path, "hopper"), start_new_session=True) as first:
        first.wait()
        seen = [marks.find(tmp_path) for _ in range(60)]
    marks.end(marks.find(tmp_path)["hopper"], signal.SIGKILL, 5)
    assert {} not in seen


def test_a_process_of_another_cluster_is_none_of_this_one(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env=marks.environment(tmp_path / "a", "x")) as process:
        while not Path(f"/proc/{process.pid}/environ").read_bytes():  # exec has closed Popen's pipe, and goes on
            time.sleep(0.001)
        found = marks.find(tmp_path / "a"), marks.find(tmp_path), marks.find(tmp_path / "a" / "b")
        process.kill()
    assert found == ({"x": [process.pid]}, {}, {})


def test_the_environment_of_a_daemon_holds_nothing_of_the_users(tmp_path: Path) -> None:
    os.environ["HIDL_SECRET"] = "x"
    try:
        assert "HIDL_SECRET" not in marks.environment(tmp_path, "x")
    finally:
        del os.environ["HIDL_SECRET"]
