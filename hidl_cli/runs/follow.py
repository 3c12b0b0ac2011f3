"""Submit and cancel runs, and follow them until they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hidl_cli.errors import HidlError
from hidl_cli.plan.launch_plan import Plan, create_run, plan_of
from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers import Scheduler, scheduler
from hidl_cli.schedulers.decision import read_status

#: The scheduler whose jobs end with the user's terminal.
_OF_THIS_MACHINE = "local"


def scheduler_of(plan: Plan) -> Scheduler:
    """Return the scheduler of a plan."""
    return scheduler(plan.scheduler)


def submit(plan: Plan, script: str) -> Run:
    """Create the run's directory and submit its job; propagates errors raised by ``create_run`` and the scheduler."""
    record = create_run(plan, script)
    scheduler_of(plan).submit(record)
    return record


def cancel(run: Run) -> tuple[bool, Status]:
    """Cancel a run and all its processes; return whether it was still running, and its status."""
    scheduler = scheduler_of(plan_of(run))
    scheduler.poll([run])
    ended_now = scheduler.cancel(run, state=State.CANCELLED)
    return ended_now, scheduler.poll([run])[0]


class Watch:
    """A poller of runs that needs only one query per scheduler."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(runs)
        self._by_scheduler: dict[str, list[Run]] = {}
        for run in runs:
            self._by_scheduler.setdefault(plan_of(run).scheduler, []).append(run)
        self._schedulers: dict[str, Scheduler] = {}
        self._unusable: dict[str, str] = {}
        for name in self._by_scheduler:
            try:
                self._schedulers[name] = scheduler(name)
            except HidlError as error:
                if len(self._by_scheduler) == 1:
                    raise
                self._unusable[name] = error.message  # a plug-in that is not installed
        self._began = time.monotonic()

    def poll(self) -> list[Status]:
        """Return the statuses of the runs, in the order of ``runs``."""
        found: dict[Path, Status] = {}
        for name, runs in self._by_scheduler.items():
            if name in self._schedulers:
                statuses = self._schedulers[name].poll(runs)
            else:
                statuses = [replace(read_status(run), reason=self._unusable[name]) for run in runs]
            found |= {run.directory: status for run, status in zip(runs, statuses, strict=True)}
        return [found[run.directory] for run in self.runs]

    def pause(self, *, at_most: float | None = None) -> None:
        """Sleep until the next poll is due, but no longer than ``at_most`` seconds."""
        seconds = time.monotonic() - self._began
        due = min((each.pause(seconds) for each in self._schedulers.values()), default=0.0)
        time.sleep(due if at_most is None else max(0.0, min(due, at_most)))


def follow(
    runs: Sequence[Run],
    *,
    tell: Callable[[Run, Status], None],
    interrupted: Callable[[Run, KeyboardInterrupt], None] | None = None,
) -> list[Status]:
    """Poll until all runs have ended, and return their final statuses.

    Args:
        runs: The runs.
        tell: Function that receives the status of each run after each poll.
        interrupted: Function that is called for each unfinished run when the user interrupts; the interrupt is then
            raised again.
    """
    watch = Watch(runs)
    statuses: list[Status] = []
    try:
        while True:
            statuses = watch.poll()
            for run, status in zip(runs, statuses, strict=True):
                tell(run, status)
            if all(status.state.is_final for status in statuses):
                return statuses
            watch.pause()
    except KeyboardInterrupt as interrupt:
        for place, run in enumerate(runs):
            if interrupted is not None and not (statuses and statuses[place].state.is_final):
                interrupted(run, interrupt)
        raise


def ends_with_the_terminal(run: Run) -> bool:
    """Return whether the run ends when the user's terminal closes, unlike the jobs of a batch system."""
    return plan_of(run).scheduler == _OF_THIS_MACHINE


def end(run: Run, state: State) -> None:
    """Cancel the run and all its processes."""
    scheduler_of(plan_of(run)).cancel(run, state=state)


def read_log(run: Run, file: Path, *, follow: bool) -> Iterator[bytes]:
    """Yield the contents of a log. With ``follow``, also yield new contents until the run ends."""
    watch = Watch([run])
    seen = 0
    while True:
        # Check before reading the file, so that no output is missed.
        ended = not follow or watch.poll()[0].state.is_final
        if file.is_file():
            with file.open("rb") as opened:
                opened.seek(seen)
                new = opened.read()
            seen += len(new)
            if new:
                yield new
        if ended:
            return
        watch.pause()
