"""Waiting for MPI without taking a core from who computes.

MPI's own waiting spins. That costs nothing where a rank has a core to itself and waits for microseconds; where ranks
share cores, or other threads of the process load the next batch, it takes their time.
"""

from __future__ import annotations

import time
from typing import Any

_SPIN_SECONDS = 500e-6
_NAP_SECONDS = 50e-6


def wait(request: Any) -> None:
    """Return when the request is complete: look often at first, then with short naps in between."""
    if request.Test():
        return
    patience = time.perf_counter() + _SPIN_SECONDS
    while not request.Test():
        if time.perf_counter() > patience:
            time.sleep(_NAP_SECONDS)
