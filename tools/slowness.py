"""How slow this machine is now: a factor that every wait of the tests is multiplied by."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

#: Names the factor for all processes of a run of the tests, so that it is measured once.
VARIABLE = "HIDL_TEST_SLOWNESS"
#: The factor is never smaller or larger than these.
LEAST, MOST = 1.0, 6.0
#: Seconds that the loop and the starts of processes take on a quiet machine with 2 cores.
LOOP_S, STARTS_S = 0.45, 0.35
_STEPS, _STARTS = 14_000_000, 450


def known() -> float:
    """The factor that a process above this one has measured, or else this one measures."""
    factor = float(os.environ.get(VARIABLE) or measure())
    os.environ[VARIABLE] = f"{factor:.2f}"
    return factor


def measure() -> float:
    """Time a loop and starts of processes, for a second in all on a quiet machine; the slower of both counts."""
    return min(max(_seconds(_loop) / LOOP_S, _seconds(_start) / STARTS_S, LEAST), MOST)


def load() -> str:
    """The load of this machine, and the share of processor time that its host has withheld (steal) since it started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    cores = len(os.sched_getaffinity(0))
    return f"load {os.getloadavg()[0]:.1f} on {cores} cores, steal {100 * ticks[7] / sum(ticks):.1f} %"


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _loop() -> None:
    total = 0
    for number in range(_STEPS):
        total += number


def _start() -> None:
    for _ in range(_STARTS):
        subprocess.run(["/bin/true"], check=True)
