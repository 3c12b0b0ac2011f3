"""What ``hidl doctor --fix`` does: only what is safe and can be taken back; hidl's own links, nothing of the user's.

A variable of the user's shell cannot be changed from here, and files that a person wrote are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.stack import installation
from hidl_cli.stack.exclusive import held
from hidl_workloads.doctor.finding import Finding


@dataclass(frozen=True)
class Fix:
    """``does`` says in words what is done, ``undo`` how it is taken back; ``apply`` says what it did, None: nothing."""

    does: str
    undo: str
    apply: Callable[[Finding, Callable[[str], None]], str | None]


def _put_in_use(finding: Finding, say: Callable[[str], None]) -> str | None:
    """Publish the only whole installation of a stack directory, as ``hidl install`` would."""
    directory = Path(finding.where or "")
    with held(directory / ".lock", say):
        current = installation.current(directory)
        whole = [prefix for prefix in installation.prefixes(directory) if installation.at(prefix)]
        chosen = current if current in whole else whole[0] if len(whole) == 1 else None
        if chosen is None:
            return None
        installation.publish(chosen)
    return f"{directory.name}: {chosen.name} is in use, and its modulefile is there"


FIXES: dict[str, Fix] = {
    "HD083": Fix(
        "makes the link `current` to the installation, where it is the only whole one, and writes its modulefile",
        "remove the link `current`",
        _put_in_use,
    ),
    "HD084": Fix("writes the modulefile again, from the installation's own copy", "remove the modulefile", _put_in_use),
}


def fix(findings: Iterable[Finding], say: Callable[[str], None]) -> Iterator[tuple[Finding, str]]:
    """Mend what can be mended; yields each finding that was, and what was done."""
    for finding in findings:
        if finding.rule in FIXES and (done := FIXES[finding.rule].apply(finding, say)):
            yield finding, done
