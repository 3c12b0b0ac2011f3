"""``hidl doctor --fix``: apply the fixes of findings.

A fix is safe and reversible, and changes hidl's own files only: never the user's files, never the user's shell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hidl_cli.doctor.registry import fixes
from hidl_workloads.doctor.finding import Finding


def fix(findings: Iterable[Finding], say: Callable[[str], None]) -> Iterator[tuple[Finding, str]]:
    """Fix what can be fixed. Yields each fixed finding, and what was done."""
    known = fixes()
    for finding in findings:
        if finding.rule in known and (done := known[finding.rule].apply(finding, say)):
            yield finding, done
