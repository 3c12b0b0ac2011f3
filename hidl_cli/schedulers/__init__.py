"""Schedulers: who gives the allocation. One module each, registered by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hidl_cli.errors import HidlError
from hidl_cli.launch.allocation import Allocation
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.local import Local
from hidl_cli.schedulers.lsf import Lsf
from hidl_cli.schedulers.slurm import Slurm
from hidl_cli.site.schema import Policies


class Scheduler(Protocol):
    """Takes a run's job script, tells how it fares, and ends it.

    Each has a template ``templates/schedulers/<name>.sh.j2``: the shell function ``list_hosts``, which prints the
    allocation's hosts, one a line.
    """

    name: str

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """The comment lines at the top of a job script that ask for the allocation, such as ``#SBATCH --nodes=4``."""

    def submit(self, run: Run, *, time_limit: float | None) -> None:
        """Hand the run's script over; ``time_limit`` in seconds.

        Raises ``SubmitRefused`` where it is not taken, ``SchedulerUnreachable`` where nobody answers.
        """

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """How the runs fare, in the same order, at the cost of one question for all of them.

        Where the scheduler does not answer, each has the status known last, with that as its ``reason``. A job that
        vanished without a word is LOST.
        """

    def cancel(self, run: Run, *, state: State) -> None:
        """End the run and all its processes; it ends in ``state`` (CANCELLED, INTERRUPTED or TIMEOUT)."""

    def pause(self, seconds: float) -> float:
        """How long to wait before the next poll of a run that was submitted ``seconds`` ago, in seconds."""


def schedulers() -> Mapping[str, Scheduler]:
    """All schedulers by name."""
    return {scheduler.name: scheduler for scheduler in (Local(), Slurm(), Lsf())}


def scheduler(name: str) -> Scheduler:
    """The scheduler of that name; ``HidlError`` where this hidl knows none."""
    known = schedulers()
    if name not in known:
        raise HidlError(f"this hidl knows no scheduler {name!r}")
    return known[name]
