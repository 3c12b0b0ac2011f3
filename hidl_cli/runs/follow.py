"""Following a run to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.runs.plan import Plan, plan_of
from hidl_cli.schedulers import Scheduler, scheduler


def scheduler_of(plan: Plan) -> Scheduler:
    """The scheduler that the plan's job is with."""
    return scheduler(plan.scheduler)


def follow(run: Run, asked: Scheduler, *, tell: Callable[[Status], None]) -> Status:
    """Poll until the run has ended and return its final status; ``tell`` gets every status seen.

    An interrupt (Ctrl-C) ends the run and all its processes, marks it INTERRUPTED and goes on as KeyboardInterrupt.
    """
    since = time.monotonic()
    try:
        while True:
            (status,) = asked.poll([run])
            tell(status)
            if status.state.is_final:
                return status
            time.sleep(asked.pause(time.monotonic() - since))
    except KeyboardInterrupt:
        asked.cancel(run, state=State.INTERRUPTED)
        raise


def read_log(run: Run, file: Path, *, follow: bool) -> Iterator[bytes]:
    """Yield what is in a log of the run; with ``follow``, also what is added until the run has ended."""
    asked = scheduler_of(plan_of(run))
    seen = 0
    while True:
        ended = (
            not follow or asked.poll([run])[0].state.is_final
        )  # asked first: what comes before the end is not missed
        if file.is_file():
            with file.open("rb") as opened:
                opened.seek(seen)
                new = opened.read()
            seen += len(new)
            if new:
                yield new
        if ended:
            return
        time.sleep(0.2)
