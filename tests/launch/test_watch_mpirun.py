"""A launcher that hangs after its ranks have ended does not keep the job; one that works is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hidl_cli.templates import render_script

HANGS = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os._exit(14)
time.sleep(60)
"""
COMPUTES = """
import os, sys, time
if os.fork() == 0:
    os._exit(14)
if os.fork() == 0:
    time.sleep(3)
    os._exit(0)
os.wait(); os.wait()
sys.exit(3)
"""
WITHOUT_CHILDREN = "import sys, time; time.sleep(3); sys.exit(4)"


@pytest.mark.real
@pytest.mark.parametrize(
    ("program", "status", "said"),
    [(HANGS, 137, "mpirun did not end"), (COMPUTES, 3, ""), (WITHOUT_CHILDREN, 4, "")],
)
def test_only_a_launcher_that_hangs_is_ended(tmp_path: Path, program: str, status: int, said: str) -> None:
    functions = render_script("launchers/run_ranks.sh.j2", {"open_mpi": True})
    assert "read -r -t 3 " in functions
    script = "\n".join(
        (
            "set -euo pipefail; step=1 child=",
            functions.replace("read -r -t 3 ", "read -r -t 0.1 "),
            'status=0; run_ranks 2 "$@" || status=$?; echo "ended with $status"; jobs -p',
        )
    )
    command = ["bash", "-c", script, "bash", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=True)

    assert done.stdout == f"ended with {status}\n"
    assert said in done.stderr
    assert bool(done.stderr) == bool(said)
