"""Memory that a process has freed: kept for the next step, or returned to the kernel where memory is short."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
#: Size in bytes from which freed blocks go back to the kernel; a network's tensors are rarely smaller.
_LARGE = 2**16
#: The largest value that ``mallopt`` accepts, and the largest that glibc may accept for big blocks (half of a heap).
_NEVER, _HALF_A_HEAP = 2**31 - 1, 32 * 2**20
_CHOSEN_OUTSIDE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep() -> bool:
    """Have glibc keep what is freed, so that the kernel need not clear it again in each step; return whether it will.

    PyTorch on CPUs gives its activations back to the C library. For ResNet-50 at 224 pixels, batch 8, glibc returns
    some 140 MiB of them to the kernel in each step, which faults them in again: 2 to 5 % of the step's time. An
    environment that chooses glibc's thresholds itself is left alone, and so is another C library.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return False
    large = mallopt(_M_MMAP_THRESHOLD, _NEVER) or mallopt(_M_MMAP_THRESHOLD, _HALF_A_HEAP)
    return bool(large and mallopt(_M_TRIM_THRESHOLD, _NEVER))


def give_back() -> bool:
    """Have glibc return large blocks to the kernel as soon as they are freed; return whether it will.

    The heap has gaps otherwise: a GPT of 4 million parameters had 1.4 times the memory of its tensors after three
    steps. What ``keep`` respects is respected here too.
    """
    mallopt = _mallopt()
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, _LARGE) and mallopt(_M_TRIM_THRESHOLD, _LARGE))


def _mallopt() -> Callable[[int, int], int] | None:
    """Return glibc's function, if there is one and the environment does not choose the thresholds itself."""
    if any(name in os.environ for name in _CHOSEN_OUTSIDE):
        return None
    return getattr(ctypes.CDLL(None), "mallopt", None)
