"""``hidl run`` of an empty program against the bare launch line that it prints."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import HIDL, Outcome, in_turn, median_difference, private_environment, wall

_EMPTY = """\
name: empty
title: A program that does nothing
program: {module: this_program_is_empty}
stacks: [{stack: mpi}]
"""


def measure() -> list[Outcome]:
    """Seconds that hidl adds to a launch of 2 ranks."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        env = private_environment(root)
        workloads = root / "config" / "hidl" / "workloads"
        workloads.mkdir(parents=True)
        (workloads / "empty.yaml").write_text(_EMPTY)
        installed = subprocess.run([HIDL, "install", "mpi", "--json"], env=env, capture_output=True, check=True)
        (installation,) = json.loads(installed.stdout)["installations"]
        (packages,) = Path(installation["prefix"]).glob("lib/python3*/site-packages")
        (packages / "this_program_is_empty.py").write_text("")
        run = [HIDL, "run", "empty", "--ranks-per-node", "2"]
        # With -v, the launch line is not shortened.
        printed = subprocess.run([*run, "-v"], env=env, capture_output=True, text=True, check=True).stderr
        (line,) = (line.removeprefix("$ ") for line in printed.splitlines() if line.startswith("$ "))
        ones, others = in_turn(lambda: wall(run, env=env), lambda: wall(["sh", "-c", line], env=env), runs=15)
    added = median_difference(ones, others)
    details = f"{statistics.median(ones):.2f} s against {statistics.median(others):.2f} s"
    return [Outcome("hidl run of an empty program, added", added, 0.3, "s", details)]
