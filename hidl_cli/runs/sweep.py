"""Sweeps whose points are separate jobs.

A sweep is a directory. Its file ``sweep.json`` lists the points and their runs. The directory also contains the plan of
each point, so that a failed point can be run again. The runs themselves do not differ from other runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hidl_cli import paths
from hidl_cli.documents import read_json, write_json
from hidl_cli.errors import HidlError, UsageError, hint_for
from hidl_cli.plan.job_script import job_script
from hidl_cli.plan.launch_plan import Plan, create_run
from hidl_cli.plan.planning import new_id
from hidl_cli.record import Run, State, all_runs
from hidl_cli.runs.follow import Watch, scheduler_of
from hidl_cli.schedulers.backend import read_reference
from hidl_cli.schedulers.decision import read_status
from hidl_cli.site.job_options import line_after, starts_after
from hidl_cli.stack.installation import hold_lock

SCHEMA = "hidl.sweep/1"


@dataclass(frozen=True)
class SweepPoint:
    """A point of a sweep: its parameters, and the ids of its runs. The last run provides the result of the point."""

    parameters: Mapping[str, Any]
    runs: tuple[str, ...]

    @property
    def run(self) -> Run | None:
        """The last run of the point, or None if the point has not been submitted or the run has been removed."""
        run = Run(paths.runs() / self.runs[-1]) if self.runs else None
        return run if run and (run.directory / "plan.json").is_file() else None


@dataclass(frozen=True)
class Sweep:
    """A sweep, identified by its directory."""

    directory: Path

    @property
    def id(self) -> str:
        """The id of the sweep."""
        return self.directory.name

    @property
    def at_most(self) -> int | None:
        """The maximum number of jobs that may be active at the same time, or None for no limit."""
        found: int | None = self._document()["at_most"]
        return found

    @property
    def is_cancelled(self) -> bool:
        """True if no further points may be submitted."""
        return bool(self._document().get("cancelled"))

    def set_cancelled(self, cancelled: bool, tell: Callable[[str], None]) -> None:
        """Forbid or permit further submissions by any command, after waiting for a submission in progress.

        Args:
            cancelled: Whether to forbid submissions.
            tell: Function that receives a message while another command is submitting points.
        """
        with self.lock(tell):
            write_json(self.directory / "sweep.json", {**self._document(), "cancelled": cancelled})

    def lock(self, tell: Callable[[str], None]) -> AbstractContextManager[None]:
        """Prevent other commands from submitting points; ``tell`` receives a message if this has to wait for them."""
        return hold_lock(self.directory / "lock", tell)

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """The points, in the order of the matrix."""
        return tuple(SweepPoint(each["parameters"], tuple(each["runs"])) for each in self._document()["points"])

    @property
    def runs(self) -> list[Run]:
        """The last run of each submitted point, in the order of ``points``."""
        return [point.run for point in self.points if point.run is not None]

    @property
    def unfinished(self) -> list[Run]:
        """The runs that have not recorded their end."""
        return [run for run in self.runs if not read_status(run).state.is_final]

    @property
    def pending(self) -> list[int]:
        """The indices of the points that have no run, or whose last run ended without success."""
        states = [read_status(point.run).state if point.run else None for point in self.points]
        return [
            index
            for index, state in enumerate(states)
            if state is None or (state.is_final and state is not State.COMPLETED)
        ]

    def plan(self, index: int) -> Plan:
        """Return the plan for a point."""
        document = read_json(self.directory / f"plan-{index + 1}.json")
        return replace(Plan.from_json(document["plan"]), sources=document["sources"])

    def submit(self, index: int, *, after: Run | None = None) -> Run:
        """Submit a point in a new run. The sweep must be locked.

        Args:
            index: Index of the point.
            after: Run whose job must have ended, successfully or not, before the new job starts.
        """
        plan, now = self.plan(index), datetime.now(timezone.utc)
        header = plan.header
        if after is not None and (job := read_reference(after).id) is not None:
            header = (*header, line_after(plan.scheduler, job))
        plan = replace(
            plan, run=new_id(plan.workload.name, now), created=now.isoformat(timespec="seconds"), header=header
        )
        run = create_run(plan, job_script(plan))
        document = self._document()
        document["points"][index]["runs"].append(run.id)
        write_json(self.directory / "sweep.json", document)
        scheduler_of(plan).submit(run)
        return run

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = read_json(self.directory / "sweep.json")
        return document


def create(plans: Sequence[tuple[Mapping[str, Any], Plan]], at_most: int | None) -> Sweep:
    """Create the directory of a sweep, which only its owner can read, because parameters may be secret.

    Args:
        plans: Parameters and plan of each point.
        at_most: Maximum number of jobs at the same time; None for no limit.
    """
    name = f"{plans[0][1].workload.name}-sweep"
    sweep = Sweep(_root() / new_id(name, datetime.now(timezone.utc)))
    points = [{"parameters": dict(parameters), "runs": []} for parameters, _ in plans]
    try:
        sweep.directory.mkdir(parents=True, mode=0o700)
        for number, (_, plan) in enumerate(plans, start=1):
            document = {"plan": plan.to_json(), "sources": dict(plan.sources)}
            write_json(sweep.directory / f"plan-{number}.json", document)
        write_json(sweep.directory / "sweep.json", {"schema": SCHEMA, "at_most": at_most, "points": points})
    except OSError as error:
        raise HidlError(
            f"cannot write the sweep directory {sweep.directory}: {error}",
            hint=hint_for(error, "free some space, or set XDG_STATE_HOME to a writable directory"),
        ) from error
    return sweep


def find_sweep(name: str | None) -> Sweep | None:
    """Return a sweep by its directory, its id, or a unique prefix or suffix of its id, or None if there is none.

    Raises ``UsageError`` if several sweeps and runs match.
    """
    if not name:
        return None
    if Path(name, "sweep.json").is_file():
        return Sweep(Path(name).resolve())
    ids = [file.parent.name for file in _root().glob("*/sweep.json")]
    fitting = [id for id in ids if id.startswith(name) or id.endswith(name)]
    if not fitting or name in fitting:
        return Sweep(_root() / name) if fitting else None
    runs = [run.id for run in all_runs() if run.id.startswith(name) or run.id.endswith(name)]
    if name in runs:
        return None
    if len(fitting) + len(runs) > 1:
        raise UsageError(
            f"{len(fitting)} sweep(s) and {len(runs)} run(s) match {name!r}: {', '.join([*fitting, *runs][:5])}",
            hint="use the whole id",
        )
    return Sweep(_root() / fitting[0])


def submit_pending(sweep: Sweep, submitted: Callable[[int, Run], object], tell: Callable[[str], None]) -> None:
    """Submit the pending points of a sweep, unless it is cancelled in the meantime.

    At most ``at_most`` points run at the same time. With a batch system, dependencies between the jobs enforce this
    limit; otherwise, this function waits for runs to end. Points that another command has submitted in the meantime are
    skipped.

    Args:
        sweep: The sweep.
        submitted: Function that receives the index of each submitted point, and its run.
        tell: Function that receives a message while another command is submitting points.
    """
    before = sweep.points
    for index in sweep.pending:
        while active := _submit_point(sweep, index, before[index].runs, submitted, tell):
            _wait_for_room(active, sweep.at_most)


def _submit_point(
    sweep: Sweep,
    index: int,
    runs: Sequence[str],
    submitted: Callable[[int, Run], object],
    tell: Callable[[str], None],
) -> list[Run]:
    """Submit a point unless the sweep has been cancelled, or the point's runs are no longer ``runs``.

    Returns the active runs if one of them must end before the point can be submitted, and an empty list otherwise.
    """
    with sweep.lock(tell):
        if sweep.is_cancelled or sweep.points[index].runs != tuple(runs):
            return []
        limit, active = sweep.at_most, sorted(sweep.unfinished, key=lambda run: read_reference(run).submitted)
        is_full = limit is not None and len(active) >= limit
        if is_full and not starts_after(sweep.plan(index).scheduler):
            return active
        run = sweep.submit(index, after=active[-limit] if is_full and limit else None)
    submitted(index, run)
    return []


def _wait_for_room(runs: Sequence[Run], limit: int | None) -> list[Run]:
    """Return the unfinished runs as soon as there are fewer than ``limit``."""
    watch = Watch(runs)
    while True:
        active = [run for run, status in zip(runs, watch.poll(), strict=True) if not status.state.is_final]
        if limit is None or len(active) < limit:
            return active
        watch.pause()


def _root() -> Path:
    return paths.user_state() / "sweeps"
