"""``job.json``: which job of which cluster a run is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidl_cli.errors import HidlError
from hidl_cli.record.run import Run


@dataclass(frozen=True)
class Ticket:
    """``id`` is None while unknown: hidl was killed, or had no answer, when it submitted the run.

    ``cluster`` is the cluster's name, None if unknown; ``submitted`` is in seconds since the epoch. ``directory`` is
    where the job was submitted from, if not from the run's directory (ReFrame has one of its own). ``foreign``: the
    directory is a copy of the run's, and the job is not known. ``cancelled``: hidl has had the scheduler end the job.
    """

    id: str | None
    cluster: str | None
    submitted: float
    directory: str | None = None
    foreign: bool = False
    cancelled: bool = False


def write_ticket(run: Run, scheduler: str, ticket: Ticket) -> Ticket:
    """Write and return it; on a full disk the run stays as it is, and its job is found by its mark."""
    document: dict[str, object] = {"id": ticket.id, "cluster": ticket.cluster, "submitted": ticket.submitted}
    if ticket.directory is not None:
        document["directory"] = ticket.directory
    if ticket.cancelled:
        document["cancelled"] = True
    with suppress(OSError):
        run.write("job", {"schema": "hidl.job/1", "scheduler": scheduler, **document, "of": identify(run.directory)})
    return ticket


def read_ticket(run: Run) -> Ticket:
    """Return the ticket of a run; of one without a readable one, or of another's copy, what its directory says."""
    document = read_job(run)
    if document is None or is_copied(document, run):
        return Ticket(None, None, time_of(run.directory), foreign=document is not None)
    submitted = document.get("submitted")
    since = float(submitted) if isinstance(submitted, int | float) else 0.0
    id, cluster, directory = (_text(document.get(name)) for name in ("id", "cluster", "directory"))
    return Ticket(id, cluster, since, directory, cancelled=document.get("cancelled") is True)


def read_job(run: Run) -> dict[str, Any] | None:
    """Return ``job.json``; None if it is missing or cannot be read."""
    with suppress(HidlError):
        return run.document("job")
    return None


def is_newer(run: Run) -> bool:
    """Whether ``status.json`` was written after ``job.json``: by a job that was submitted again by hand."""
    try:
        return (run.directory / "status.json").stat().st_mtime_ns > (run.directory / "job.json").stat().st_mtime_ns
    except OSError:
        return False


def time_of(directory: Path) -> float:
    """Return when a directory was made or changed last, in seconds since the epoch; also of one that was copied."""
    return directory.stat().st_ctime


def identify(directory: Path) -> dict[str, object]:
    """Return what a directory keeps under other mounts, and its path: a copy has neither."""
    return {"inode": directory.stat().st_ino, "path": os.path.realpath(directory)}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def is_copied(document: Mapping[str, object], run: Run) -> bool:
    """Whether ``job.json`` was written for another directory, of which this one is a copy."""
    of = document.get("of")
    return isinstance(of, dict) and not (identify(run.directory).items() & of.items())
