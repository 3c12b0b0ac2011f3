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
    asked = time.monotonic()
    while not (found := condition()):
        now = time.monotonic()
        if now > deadline:
            said = otherwise() if otherwise else f"slowness {SLOWNESS:.1f}"
            raise AssertionError(f"not so within {patience(within):.0f} s: {said}")
        time.sleep(min(max(now - asked, 0.02), 1))  # half the time at most is spent on asking
        asked = time.monotonic()
    return found
