"""Schedulers give the allocation: a folder each, named by a row of ``hidl_cli/batch_systems.py``."""

from __future__ import annotations

from hidl_cli.batch_systems import SCHEDULERS
from hidl_cli.errors import InvalidInput, MissingPrecondition
from hidl_cli.schedulers.backend import Backend, Scheduler
from hidl_cli.schedulers.batch import Batch
from hidl_cli.site.schema import Site

__all__ = ["Scheduler", "names", "scheduler", "scheduler_for", "unusable"]


def names() -> tuple[str, ...]:
    """Return the names of all schedulers that hidl can submit to."""
    return SCHEDULERS.names()


def scheduler(name: str) -> Scheduler:
    """Return the scheduler of that name; ``UsageError`` if unknown, and what ``Registry.get`` raises."""
    found = SCHEDULERS.get(name)
    if isinstance(found, Backend):
        return Batch(found)
    whole: Scheduler = found
    return whole


def unusable(site: Site) -> str | None:
    """Return why hidl cannot submit jobs on the site; None if it can."""
    if site.scheduler is None:
        return "unknown scheduler"
    return None if site.scheduler in names() else f"scheduler {site.scheduler} not supported yet"


def scheduler_for(site: Site) -> Scheduler:
    """Return the site's scheduler; ``InvalidInput`` if unknown, ``MissingPrecondition`` if hidl does not support it."""
    reason = unusable(site)
    if site.scheduler is None:
        raise InvalidInput(f"site {site.name}: {reason}", hint="set `scheduler` in its file")
    if reason is not None:
        raise MissingPrecondition(f"site {site.name}: {reason}", hint=f"supported: {', '.join(names())}")
    return scheduler(site.scheduler)
