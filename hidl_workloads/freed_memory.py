"""Memory that a process has freed stays its own: what computes in steps wants the same amount again and again."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
#: The largest that ``mallopt`` takes, and the largest for big blocks where glibc takes no more (half of a heap).
_NEVER, _HALF_A_HEAP = 2**31 - 1, 32 * 2**20
_CHOSEN_OUTSIDE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep() -> bool:
    """Have glibc keep what is freed, so that the kernel need not clear it again in each step; return whether it will.

    PyTorch on CPUs gives its activations back to the C library. For ResNet-50 at 224 pixels, batch 8, glibc returns
    some 140 MiB of them to the kernel in each step, which faults them in again: 2 to 5 % of the step's time. An
    environment that chooses glibc's thresholds itself is left alone, and so is another C library.
    """
    if any(name in os.environ for name in _CHOSEN_OUTSIDE):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    large = mallopt(_M_MMAP_THRESHOLD, _NEVER) or mallopt(_M_MMAP_THRESHOLD, _HALF_A_HEAP)
    return bool(large and mallopt(_M_TRIM_THRESHOLD, _NEVER))
