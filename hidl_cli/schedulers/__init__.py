"""Schedulers that hidl submits jobs to; ``hidl_cli/batch_systems.py`` registers them."""

from __future__ import annotations

from hidl_cli.batch_systems import SCHEDULERS
from hidl_cli.errors import InvalidInput, MissingPrecondition
from hidl_cli.schedulers.backend import Backend, Scheduler
from hidl_cli.schedulers.batch import BatchScheduler
from hidl_cli.site.schema import Site

__all__ = ["Scheduler", "names", "scheduler", "scheduler_for", "unusable"]


def names() -> tuple[str, ...]:
    """Return the names of all supported schedulers."""
    return SCHEDULERS.names()


#: Suffix that selects a variant of a scheduler: it runs jobs in the allocation in which hidl itself is running.
IN_ALLOCATION = "-allocation"


def scheduler(name: str) -> Scheduler:
    """Return a scheduler by name.

    Raises ``UsageError`` if it is unknown, and propagates errors from ``Registry.get``.
    """
    if name.endswith(IN_ALLOCATION):
        from hidl_cli.schedulers.local import InAllocation

        return InAllocation(name, scheduler(name.removesuffix(IN_ALLOCATION)).functions)
    found: Scheduler | Backend = SCHEDULERS.get(name)
    return BatchScheduler(found) if isinstance(found, Backend) else found


def unusable(site: Site) -> str | None:
    """Return the reason why hidl cannot submit jobs on the site, or None if it can."""
    if site.scheduler is None:
        return "unknown scheduler"
    return None if site.scheduler in names() else f"scheduler {site.scheduler} not supported yet"


def scheduler_for(site: Site) -> Scheduler:
    """Return the site's scheduler.

    Raises ``InvalidInput`` if it is unknown, and ``MissingPrecondition`` if it is unsupported.
    """
    reason = unusable(site)
    if site.scheduler is None:
        raise InvalidInput(f"site {site.name}: {reason}", hint="set `scheduler` in its file")
    if reason is not None:
        raise MissingPrecondition(f"site {site.name}: {reason}", hint=f"supported: {', '.join(names())}")
    return scheduler(site.scheduler)
