"""Requests to stop: by signal or file, between two steps."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hidl_workloads.stop import SIGNALS, STOPPED
from tests.conftest import REPOSITORY
from tests.waiting import patience

PROGRAM = """
import sys, time
from hidl_workloads import should_stop
print(should_stop(), flush=True)
while not should_stop():
    time.sleep(0.01)
print("saved", flush=True)
sys.exit(75)
"""


@pytest.mark.parametrize("how", [*SIGNALS, "file"])
def test_a_program_stops_in_good_order(tmp_path: Path, how: signal.Signals | str) -> None:
    file = tmp_path / "stop"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": str(REPOSITORY), "HIDL_STOP": str(file)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "False\n"
    if isinstance(how, signal.Signals):
        process.send_signal(how)
    else:
        file.touch()
    printed, _ = process.communicate(timeout=patience(20))
    assert (printed, process.returncode) == ("saved\n", STOPPED)


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(REPOSITORY), "HIDL_STOP": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=patience(20),
        check=False,
    )


def test_a_signal_during_the_look_at_the_file_is_not_lost() -> None:
    """On a slow file system, most signals arrive then."""
    program = """
import os, signal
from hidl_workloads import should_stop
look = os.path.exists
def slowly(path):
    os.kill(os.getpid(), signal.SIGUSR1)
    return look(path)
os.path.exists = slowly
print(should_stop())
"""
    assert _run(program).stdout == "True\n"


def test_forked_workers_end_by_sigterm() -> None:
    """Python waits at its end for such workers, after SIGTERM."""
    program = """
import multiprocessing, time
from hidl_workloads import should_stop
should_stop()
context = multiprocessing.get_context("fork")
worker = context.Process(target=time.sleep, args=(1000,), daemon=True)
worker.start()
worker.terminate()
worker.join(10)
print(worker.exitcode)
worker.kill()
"""
    assert _run(program).stdout == f"{-signal.SIGTERM}\n"
