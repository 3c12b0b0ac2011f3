"""How the tests wait: for an event, and longer where the machine is slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tools import slowness

T = TypeVar("T")
#: 1 on a quiet machine, up to 6 on a slow or loaded one.
SLOWNESS = slowness.known()


def patience(seconds: float) -> float:
    """How long to wait here for what takes at most so many seconds on a quiet machine."""
    return seconds * SLOWNESS


def until(condition: Callable[[], T], *, within: float = 180, otherwise: Callable[[], object] | None = None) -> T:
    """Wait until the condition holds and return what it gives; fails after so many seconds of a quiet machine.

    ``otherwise`` makes what the failure says.
    """
    deadline = time.monotonic() + patience(within)
    while not (found := condition()):
        if time.monotonic() > deadline:
            said = otherwise() if otherwise else f"slowness {SLOWNESS:.1f}"
            raise AssertionError(f"not so within {patience(within):.0f} s: {said}")
        time.sleep(0.02)
    return found
