"""Sweeps whose points are separate jobs.

A sweep is a directory with ``sweep.json``, which lists the points and their runs, and with the plan of each point, from
which a failed point can be run again. Each run is a run like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hidl_cli import paths
from hidl_cli.documents import read_json, write_json
from hidl_cli.errors import HidlError, hint_for
from hidl_cli.plan.job_script import job_script
from hidl_cli.plan.launch_plan import Plan, create_run
from hidl_cli.plan.planning import new_id
from hidl_cli.record import Run, State
from hidl_cli.runs.follow import Watch, scheduler_of
from hidl_cli.schedulers.backend import read_reference
from hidl_cli.schedulers.decision import read_status
from hidl_cli.site.job_options import line_after, starts_after

SCHEMA = "hidl.sweep/1"


@dataclass(frozen=True)
class SweepPoint:
    """A point of a sweep: its parameters, and the ids of its runs, of which the last one counts."""

    parameters: Mapping[str, Any]
    runs: tuple[str, ...]

    @property
    def run(self) -> Run | None:
        """The run that counts, or None if the point has not been submitted or its run has been removed."""
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
        """The maximum number of jobs at the same time."""
        found: int | None = self._document()["at_most"]
        return found

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """The points, in the order of the matrix."""
        return tuple(SweepPoint(each["parameters"], tuple(each["runs"])) for each in self._document()["points"])

    @property
    def runs(self) -> list[Run]:
        """The runs that count, in the order of the points."""
        return [point.run for point in self.points if point.run is not None]

    @property
    def unfinished(self) -> list[Run]:
        """The runs that have not recorded their end."""
        return [run for run in self.runs if not read_status(run).state.is_final]

    @property
    def pending(self) -> list[int]:
        """The indices of the points without a run, and of those whose last run has ended without success."""
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
        """Submit a point in a new run.

        Args:
            index: Index of the point.
            after: Run whose job must have ended, in whatever way, before this one starts.
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
    """Return a sweep by its directory, its id, or a unique start or end of its id, or None if there is none."""
    if not name:
        return None
    if Path(name, "sweep.json").is_file():
        return Sweep(Path(name).resolve())
    found = [file.parent for file in _root().glob("*/sweep.json")]
    fitting = [each for each in found if each.name.startswith(name) or each.name.endswith(name)]
    exact = [each for each in fitting if each.name == name]
    return Sweep((exact or fitting)[0]) if len(exact or fitting) == 1 else None


def submit_pending(sweep: Sweep, pending: Sequence[int], submitted: Callable[[int, Run], object]) -> None:
    """Submit points, at most ``at_most`` of which run at the same time.

    A batch system keeps the limit by dependencies between the jobs. Without one, this function waits for runs to end.

    Args:
        sweep: The sweep.
        pending: Indices of the points.
        submitted: Function that receives each index and its run.
    """
    limit, active = sweep.at_most, sweep.unfinished
    for index in pending:
        full = limit is not None and len(active) >= limit
        if full and starts_after(sweep.plan(index).scheduler):
            assert limit is not None
            run = sweep.submit(index, after=active[-limit])
        else:
            active = _wait_for_room(active, limit) if full else active
            run = sweep.submit(index)
        active.append(run)
        submitted(index, run)


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
