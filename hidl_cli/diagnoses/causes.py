"""Likely causes of a failed run: from its output, and from what its job found on its nodes and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hidl_cli.diagnoses.search import search
from hidl_cli.errors import HidlError
from hidl_cli.record.run import Run
from hidl_workloads.doctor.finding import SEVERITIES, Finding

MAX_TEXT = 256 * 1024
"""Characters of output that are searched: the last ones of a longer text."""

_FURTHER = 3
_CAUSES, _FINDINGS = "causes", "findings"
"""Documents of a run's directory: the likely causes, and what its job found by itself."""


def find_causes(text: str) -> list[Finding]:
    """Find the known causes in ``text``, each once, likeliest first."""
    return [cause.finding for cause in search([text[-MAX_TEXT:].encode("utf-8", "replace")])]


def read_causes(run: Run) -> list[Finding]:
    """The likely causes of a run's failure, likeliest first: from ``causes.json``, else from its logs.

    Errors come before warnings; findings of the job itself before those from its stdout and stderr.
    """
    written = _read_findings(run, _CAUSES)
    return _causes_of(run) if written is None else written


def read_warnings(run: Run) -> list[Finding]:
    """Return what the job found wrong on its nodes and ranks, errors first."""
    found = [finding for finding in _read_findings(run, _FINDINGS) or () if finding.severity in ("error", "warning")]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def write_causes(run: Run, proven: Sequence[Finding] = ()) -> None:
    """Write ``causes.json``, once: what is ``proven``, then what is likely.

    In a read-only directory nothing is written.
    """
    if _read_findings(run, _CAUSES) is None:
        causes = [finding.to_json() for finding in (*proven, *_causes_of(run))]
        with suppress(OSError):
            run.write(_CAUSES, {"schema": "hidl.causes/1", "run": run.id, "findings": causes})


def format_causes(causes: Sequence[Finding]) -> str:
    """Format the first cause with its reason, and the titles of the next few. A warning is only a possible cause."""
    if not causes:
        return ""
    likely, *others = causes
    place = f" on {likely.where}" if likely.where and likely.where not in likely.seen else ""
    word = "likely" if likely.severity == "error" else "possible"
    lines = [f"{word} cause: {likely.title}{place} ({likely.rule})", f"  seen: {likely.seen}", f"  why: {likely.why}"]
    lines += [f"  fix: {likely.fix}"] if likely.severity != "error" else []
    lines += [f"also seen: {other.title} ({other.rule})" for other in others[:_FURTHER]]
    return "\n".join(lines)


def _causes_of(run: Run) -> list[Finding]:
    inside = read_warnings(run)
    known = {finding.rule for finding in inside}
    printed = find_causes("\n".join(_tail(log) for log in (run.stdout, run.stderr)))
    causes = [*inside, *(finding for finding in printed if finding.rule not in known)]
    return sorted(causes, key=lambda finding: SEVERITIES.index(finding.severity))


def _read_findings(run: Run, name: str) -> list[Finding] | None:
    """Findings of one of the run's documents; None if it is missing or invalid."""
    try:
        document = run.document(name)
        return None if document is None else [Finding.from_json(one) for one in document["findings"]]
    except (HidlError, KeyError, TypeError):
        return None


def _tail(log: Path) -> str:
    """The last ``MAX_TEXT // 2`` bytes of a log; empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - MAX_TEXT // 2))
            return file.read(MAX_TEXT // 2).decode("utf-8", "replace")
    except OSError:
        return ""
