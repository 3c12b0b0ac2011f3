"""``job.json``: which job of which cluster a run is."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass

from hidl_cli.record.run import Run
from hidl_cli.schedulers.slurm import programs

#: How long a submission may take before a run without a job is taken for one that was never submitted.
SUBMISSION_SECONDS = programs.SUBMIT_SECONDS + 30.0


@dataclass(frozen=True)
class Ticket:
    """``id`` is None while it is not known: hidl was ended, or had no answer, when it submitted the run.

    ``cluster`` is the cluster's name, None where it could not be had; ``submitted`` is in seconds since the epoch.
    ``directory`` is where the job was submitted from, if not from the run's directory (ReFrame has one of its own).
    """

    id: str | None
    cluster: str | None
    submitted: float
    directory: str | None = None


def open_ticket(run: Run, cluster: str | None) -> Ticket:
    """Say that the run is about to be submitted; from now on its job can be found by its directory."""
    return keep(run, Ticket(None, cluster, time.time()))


def keep(run: Run, ticket: Ticket) -> Ticket:
    """Write it; where there is no room the run stays as it is, and its job is found by its directory."""
    document = {"id": ticket.id, "cluster": ticket.cluster, "submitted": ticket.submitted}
    if ticket.directory is not None:
        document["directory"] = ticket.directory
    with suppress(OSError):
        run.write("job", {"schema": "hidl.job/1", "scheduler": "slurm", **document})
    return ticket


def ticket_of(run: Run) -> Ticket:
    """The ticket of a run; of one that has none, what its directory tells."""
    document = run.document("job")
    if document is None:
        return Ticket(None, None, run.directory.stat().st_mtime)
    submitted = float(document.get("submitted") or 0)
    return Ticket(document.get("id"), document.get("cluster"), submitted, document.get("directory"))


def directory_of(run: Run) -> str:
    """The directory that Slurm says the job was submitted from."""
    return os.path.realpath(ticket_of(run).directory or run.directory)
