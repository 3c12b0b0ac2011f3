"""Waiting for MPI without taking a core from who computes.

MPI's own waiting spins. That costs nothing where a rank has a core to itself and waits for microseconds; where ranks
share cores, or other threads of the process load the next batch, it takes their time.
"""

from __future__ import annotations

import time
from typing import Any

_SPIN_SECONDS = 500e-6
_SHORTEST_NAP, _LONGEST_NAP = 50e-6, 2e-3  # seconds


def wait(request: Any) -> None:
    """Return when the request is complete: look often at first, then with naps that grow with the time waited."""
    if request.Test():
        return
    begin = time.perf_counter()
    while not request.Test():
        waited = time.perf_counter() - begin
        if waited > _SPIN_SECONDS:
            time.sleep(min(max(_SHORTEST_NAP, waited / 100), _LONGEST_NAP))
