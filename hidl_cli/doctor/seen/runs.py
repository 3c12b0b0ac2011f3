"""What is likely wrong with a run that failed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hidl_cli.doctor.seen.matching import MOST, causes
from hidl_cli.errors import HidlError
from hidl_cli.record.run import Run
from hidl_workloads.doctor.finding import SEVERITIES, Finding

CAUSES, FOUND_INSIDE = "causes", "findings"
"""Documents of a run's directory: what is told of it, and what its job found by itself (nodes and ranks)."""


def causes_of(run: Run) -> list[Finding]:
    """The likely causes of a run's failure, the likeliest first: as they were written down, else found now.

    Errors come before warnings; of either, what the job found by itself before what its stdout and stderr show.
    """
    kept = _documented(run, CAUSES)
    return _found(run) if kept is None else kept


def keep_causes(run: Run) -> None:
    """Write ``causes.json``, once. Where the directory cannot be written, they are found anew each time."""
    if _documented(run, CAUSES) is None:
        found = [finding.to_json() for finding in _found(run)]
        with suppress(OSError):
            run.write(CAUSES, {"schema": "hidl.causes/1", "run": run.id, "findings": found})


def _found(run: Run) -> list[Finding]:
    inside = [finding for finding in _documented(run, FOUND_INSIDE) or () if finding.severity in ("error", "warning")]
    known = {finding.rule for finding in inside}
    printed = causes("\n".join(_end(log) for log in (run.stdout, run.stderr)))
    found = [*inside, *(finding for finding in printed if finding.rule not in known)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _documented(run: Run, name: str) -> list[Finding] | None:
    """The findings of one of the run's documents; None where it is not there, or damaged."""
    try:
        document = run.document(name)
        return None if document is None else [Finding.from_json(one) for one in document["findings"]]
    except (HidlError, KeyError, TypeError):
        return None


def _end(log: Path) -> str:
    """The end of a log: half of what is looked at."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - MOST // 2))
            return file.read(MOST // 2).decode("utf-8", "replace")
    except OSError:
        return ""
