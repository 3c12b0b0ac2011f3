"""Schedulers: who gives the allocation. One module each, registered by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hidl_cli.runs.record import Run, State, Status
from hidl_cli.schedulers.local import Local


class Scheduler(Protocol):
    """Takes a run's job script, tells how it fares, and ends it."""

    name: str

    def submit(self, run: Run, *, time_limit: float | None) -> None:
        """Hand the run's script over; ``time_limit`` in seconds. ``SubmitRefused`` where it is not taken."""

    def poll(self, run: Run) -> Status:
        """How the run fares; a job that vanished without a word is LOST."""

    def cancel(self, run: Run, *, state: State) -> None:
        """End the run and all its processes; it ends in ``state`` (CANCELLED, INTERRUPTED or TIMEOUT)."""

    def pause(self, seconds: float) -> float:
        """How long to wait before the next poll of a run that was submitted ``seconds`` ago, in seconds."""


def schedulers() -> Mapping[str, Scheduler]:
    """All schedulers by name."""
    return {scheduler.name: scheduler for scheduler in (Local(),)}
