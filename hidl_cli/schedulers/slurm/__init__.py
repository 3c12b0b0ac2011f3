"""Slurm: jobs go in through ``sbatch``; how they fare is asked for all at once, and told apart from what they wrote."""

from __future__ import annotations

from collections.abc import Sequence

from hidl_cli.launch.allocation import Allocation
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.slurm import cancel, header, submit
from hidl_cli.schedulers.slurm.poll import Poller
from hidl_cli.site.schema import Policies


class Slurm:
    """Hands job scripts to Slurm."""

    name = "slurm"

    def __init__(self) -> None:
        self._poller = Poller()

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Scheduler.header``."""
        return header.header(allocation, policies)

    def submit(self, run: Run, *, time_limit: float | None) -> None:
        """See ``Scheduler.submit``; the time limit stands in the script."""
        submit.submit(run)

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """See ``Scheduler.poll``."""
        return self._poller.poll(runs)

    def cancel(self, run: Run, *, state: State) -> None:
        """See ``Scheduler.cancel``."""
        cancel.cancel(run, state=state)

    def pause(self, seconds: float) -> float:
        """See ``Scheduler.pause``: most polls look at the run's directory alone, and Slurm is asked less often."""
        return min(2.0, max(0.1, seconds / 20))
