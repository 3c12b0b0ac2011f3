"""``job.json``: which job of which cluster a run is."""

from __future__ import annotations

from dataclasses import dataclass

from hidl_cli.record.run import Run


@dataclass(frozen=True)
class Ticket:
    """``id`` is None while it is not known: hidl was ended, or had no answer, when it submitted the run.

    ``cluster`` is LSF's name of it, None where it could not be had; ``submitted`` is in seconds since the epoch.
    """

    id: str | None
    cluster: str | None
    submitted: float


def keep(run: Run, ticket: Ticket) -> None:
    """Write it."""
    document = {"id": ticket.id, "cluster": ticket.cluster, "submitted": ticket.submitted}
    run.write("job", {"schema": "hidl.job/1", "scheduler": "lsf", **document})


def ticket_of(run: Run) -> Ticket:
    """The ticket of a run; of one that has none, what its directory tells."""
    document = run.document("job")
    if document is None:
        return Ticket(None, None, run.directory.stat().st_mtime)
    return Ticket(document.get("id"), document.get("cluster"), float(document.get("submitted") or 0))
