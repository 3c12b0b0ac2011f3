"""``job.json``: which job of which cluster a run is."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from hidl_cli.record.run import Run


@dataclass(frozen=True)
class Ticket:
    """``id`` is None while unknown: hidl was killed, or had no answer, when it submitted the run.

    ``cluster`` is the cluster's name, None if unknown; ``submitted`` is in seconds since the epoch. ``directory`` is
    where the job was submitted from, if not from the run's directory (ReFrame has one of its own).
    """

    id: str | None
    cluster: str | None
    submitted: float
    directory: str | None = None


def write_ticket(run: Run, scheduler: str, ticket: Ticket) -> Ticket:
    """Write and return it; on a full disk the run stays as it is, and its job is found by its mark."""
    document = {"id": ticket.id, "cluster": ticket.cluster, "submitted": ticket.submitted}
    if ticket.directory is not None:
        document["directory"] = ticket.directory
    with suppress(OSError):
        run.write("job", {"schema": "hidl.job/1", "scheduler": scheduler, **document})
    return ticket


def read_ticket(run: Run) -> Ticket:
    """Return the ticket of a run; of one without, what its directory says."""
    document = run.document("job")
    if document is None:
        return Ticket(None, None, run.directory.stat().st_mtime)
    submitted = float(document.get("submitted") or 0)
    return Ticket(document.get("id"), document.get("cluster"), submitted, document.get("directory"))
