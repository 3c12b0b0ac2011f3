"""Select the runs of a report, after updating their directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path

from hidl_cli import paths
from hidl_cli.errors import HidlError
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.record.run import Run, all_runs, find
from hidl_cli.record.state import Status
from hidl_cli.report.loaded import Loaded, load
from hidl_cli.report.text import when
from hidl_cli.runs.history import judge_if_ended, refresh
from hidl_cli.store.extract import series_of
from hidl_cli.store.filters import Filters
from hidl_cli.store.store import Store


def chosen(
    names: Sequence[str],
    *,
    site: str | None = None,
    workload: str | None = None,
    since: datetime | None = None,
    most: int | None = None,
    root: Path | None = None,
) -> list[Run]:
    """Return the named runs, or all of this user's; of these, the newest that match.

    Raises ``UsageError`` for an unknown name, and ``HidlError`` for a named run that cannot be read.
    """
    runs = [find(name, root) for name in names]
    newest_first = sorted(((run, plan_of(run)) for run in runs), key=lambda each: each[1].created, reverse=True)
    found = iter(newest_first) if names else _newest_first(root, since)
    fitting = (run for run, plan in found if _fits(plan, site, workload, since))
    return list(dict.fromkeys(islice(fitting, most)))


def _newest_first(root: Path | None, since: datetime | None) -> Iterator[tuple[Run, Plan]]:
    """Yield all readable runs until one is too old; a run's directory is named by the time of its plan."""
    for run in all_runs(root):
        try:
            plan = plan_of(run)
        except HidlError:
            continue
        if since is not None and when(plan.created) < since:
            return
        yield run, plan


def loaded(runs: Sequence[Run]) -> tuple[list[Loaded], list[str]]:
    """Return the loaded runs, and sentences about what could not be read."""
    statuses, notes = _refreshed(runs)
    found = []
    for run in runs:
        try:
            found.append(load(run, statuses.get(run)))
        except HidlError as error:
            notes.append(f"run {run.id} is left out: {error.message}")
    return found, notes


def _refreshed(runs: Sequence[Run]) -> tuple[dict[Run, Status], list[str]]:
    """Return the schedulers' statuses of runs that have not ended, and judge those that have.

    Only this user's own runs: a copied directory stays as it is, because its job is unknown here.
    """
    statuses: dict[Run, Status] = {}
    notes = []
    open_ones = []
    own = paths.runs().resolve()
    for run in runs:
        if run.directory.resolve().parent != own:
            continue
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
    except HidlError as error:
        notes.append(f"runs that have not ended are shown as their jobs said last: {error.message}")
    return statuses, notes


def _fits(plan: Plan, site: str | None, workload: str | None, since: datetime | None) -> bool:
    return (
        (site is None or plan.site == site)
        and (workload is None or plan.workload.name == workload)
        and (since is None or when(plan.created) >= since)
    )


def related_runs(runs: Sequence[Loaded], store: Store) -> list[Loaded]:
    """Return earlier runs that measured the same, if the store knows them and their directories exist.

    Raises ``HidlError`` if the store cannot be read.
    """
    seen = {run.run.id for run in runs}
    found = []
    for run in [point for whole in runs for point in whole.by_point()]:
        largest = max(run.plan.steps, key=lambda step: step.size)
        before = Filters(series=series_of(run.plan, largest), until=when(run.plan.created))
        for stored in store.runs(before):
            if stored.run in seen:
                continue
            seen.add(stored.run)
            with suppress(HidlError):
                found.append(load(Run(Path(stored.directory))))
    return found


def format_selection(names: Sequence[str], site: str | None, workload: str | None, since: str | None) -> str:
    """Format the selection for the page's title."""
    if names:
        return ", ".join(names) if len(names) < 4 else f"{len(names)} chosen runs"
    parts = [workload or "all workloads", f"on {site}" if site else "on all sites", f"since {since}" if since else ""]
    return " ".join(part for part in parts if part)
