"""Phases of a program, marked for the recorder of ``hidl run --profile``.

::

    from hidl_workloads.phases import phase

    with phase("step"):
        with phase("forward"):
            loss = model(batch)
        with phase("backward"):
            loss.backward()

Times of a scaling study come from the phases that are in no other, without ``warmup``. In ``average`` and
``communication``, ranks exchange data; time in ``input`` is that of reading the data, and time in ``packing`` that of
copies for an exchange. Without the recorder, nothing is done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

WARMUP = "warmup"
STEP = "step"
INPUT = "input"
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
AVERAGE, COMMUNICATION = "average", "communication"
PACKING = "packing"

_warming_up = False


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Record the calls and the time of this block as a phase of that name; parts of the warm-up are not marked."""
    recorder = _recorder()
    if recorder is None or _warming_up:
        yield
        return
    recorder.mpitraffic_phase_begin(name.encode())
    try:
        yield
    finally:
        recorder.mpitraffic_phase_end()


@contextmanager
def warmup(*, active: bool = True) -> Iterator[None]:
    """Record this block as the warm-up if ``active``; phases in it are not marked."""
    global _warming_up  # noqa: PLW0603 - the phase of a process
    if not active:
        yield
        return
    with phase(WARMUP):
        _warming_up = True
        try:
            yield
        finally:
            _warming_up = False


@cache
def _recorder() -> Any:
    program = ctypes.CDLL(None)
    return program if hasattr(program, "mpitraffic_phase_begin") else None
