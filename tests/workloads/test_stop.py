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
