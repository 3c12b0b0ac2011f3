"""Rule HD085: what is said where files of an installation are damaged, by the doctor and of a failed run."""

from __future__ import annotations

from pathlib import Path

from hidl_cli.errors import MissingPrecondition
from hidl_cli.quoting import sh
from hidl_cli.stack import content
from hidl_workloads.doctor.finding import Evidence, Finding

RULE = "HD085"
TITLE = "Files of the installation are damaged or missing"
WHY = "Programs crash, do not start, or compute with other code than was verified."

_SHOWN = 3


def look(prefix: Path, *, deep: bool) -> Evidence | None:
    """Hold the installation at ``prefix`` against its recorded content, by sizes or ``deep``; None if it is whole."""
    stack = prefix.parent.name
    if not prefix.is_dir():
        return Evidence(f"{prefix} is gone: it was removed", f"hidl install {sh(stack)}, and run it again", str(prefix))
    try:
        found = content.compare(prefix, content.read(prefix), deep=deep)
    except (MissingPrecondition, OSError) as error:
        return Evidence(str(error), f"hidl uninstall {sh(stack)}, and install it again", where=str(prefix))
    wrong = [*found.damaged, *found.missing]
    if not wrong:
        return None
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return Evidence(
        f"{len(found.damaged)} file(s) damaged and {len(found.missing)} missing in {prefix}: "
        f"{', '.join(wrong[:_SHOWN])}{more}",
        f"hidl stack verify {sh(stack)} --repair (jobs that run are not disturbed)",
        where=str(prefix),
    )


def finding(evidence: Evidence) -> Finding:
    """The same as a finding."""
    return Finding(RULE, "error", TITLE, evidence.seen, WHY, evidence.fix, evidence.where)
