"""Which runs a report is about, and their directories brought up to date first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path

from hidl_cli.errors import HidlError, SchedulerUnreachable, UsageError
from hidl_cli.record.run import Run, all_runs, find
from hidl_cli.record.state import Status
from hidl_cli.report.loaded import Loaded, load
from hidl_cli.report.text import when
from hidl_cli.runs.history import judge_if_ended, refresh
from hidl_cli.runs.plan import Plan, plan_of

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def chosen(
    names: Sequence[str],
    *,
    site: str | None = None,
    workload: str | None = None,
    since: datetime | None = None,
    most: int | None = None,
    root: Path | None = None,
) -> list[Run]:
    """The named runs, or all of this user's; of these, those that fit, at most so many of the newest.

    Raises ``UsageError`` for a name that is none, and ``HidlError`` for a named run that cannot be read.
    """
    runs = [find(name, root) for name in names]
    newest_first = sorted(((run, plan_of(run)) for run in runs), key=lambda each: each[1].created, reverse=True)
    found = iter(newest_first) if names else _newest_first(root, since)
    fitting = (run for run, plan in found if _fits(plan, site, workload, since))
    return list(dict.fromkeys(islice(fitting, most)))


def _newest_first(root: Path | None, since: datetime | None) -> Iterator[tuple[Run, Plan]]:
    """All runs that this hidl reads, until one is too old: a run's directory is named by the time of its plan."""
    for run in all_runs(root):
        try:
            plan = plan_of(run)
        except HidlError:
            continue
        if since is not None and when(plan.created) < since:
            return
        yield run, plan


def loaded(runs: Sequence[Run]) -> tuple[list[Loaded], list[str]]:
    """The runs, read; and, in sentences, what could not be found out about them."""
    statuses, notes = _refreshed(runs)
    found = []
    for run in runs:
        try:
            found.append(load(run, statuses.get(run)))
        except HidlError as error:
            notes.append(f"run {run.id} is left out: {error.message}")
    return found, notes


def _refreshed(runs: Sequence[Run]) -> tuple[dict[Run, Status], list[str]]:
    """What the schedulers say of those that have not ended, and a verdict on those that have."""
    statuses: dict[Run, Status] = {}
    notes = []
    open_ones = []
    for run in runs:
        try:
            status = run.status()
            if status.state.is_final:
                judge_if_ended(run, status)
            elif run.document("job") is not None:
                open_ones.append(run)
        except HidlError as error:
            notes.append(f"run {run.id}: {error.message}")
    try:
        statuses = dict(zip(open_ones, refresh(open_ones), strict=True)) if open_ones else {}
    except SchedulerUnreachable as error:
        notes.append(f"runs that have not ended are shown as their jobs said last: {error.message}")
    return statuses, notes


def _fits(plan: Plan, site: str | None, workload: str | None, since: datetime | None) -> bool:
    return (
        (site is None or plan.site == site)
        and (workload is None or plan.workload.name == workload)
        and (since is None or when(plan.created) >= since)
    )


def since(text: str, now: datetime | None = None) -> datetime:
    """``2026-11-01``, ``2026-11-01T12:00``, or back from now: ``12h``, ``30d``, ``4w``. ``UsageError`` for others."""
    back = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if back:
        return (now or datetime.now(timezone.utc)) - timedelta(**{_UNITS[back[2]]: int(back[1])})
    try:
        return when(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time", hint="for example 2026-11-01, 12h, 30d or 4w") from None


def in_words(names: Sequence[str], site: str | None, workload: str | None, since: str | None) -> str:
    """The selection as the page's title says it."""
    if names:
        return ", ".join(names) if len(names) < 4 else f"{len(names)} chosen runs"
    parts = [workload or "all workloads", f"on {site}" if site else "on all sites", f"since {since}" if since else ""]
    return " ".join(part for part in parts if part)
