"""Rules: Python modules that get into a stack from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes.python import Place, Python, probe
from hidl_workloads.doctor.finding import Finding, Rules, Seen, Severity

RULES: Rules[Python] = Rules()

_SHOWN = 6


def examine(context: Context) -> list[Finding]:
    """What leaks into the installation."""
    return RULES.findings(probe(context))


@RULES.rule(
    "HD063",
    "Packages of the Python user site get into the stack",
    severity="error",
    why="What `pip install --user` left there stands before the stack's own packages or beside them: ranks import "
    "other versions than the lock says, often built for another NumPy or MPI, and every node with that home does.",
)
def user_site(facts: Python) -> Iterator[Seen]:
    """An error where it holds what the stack holds too."""
    place = facts.user_site
    if place is None:
        return
    what = f"the stack's Python {facts.version} looks into {place.directory}"
    if place.shadows:
        what += f", which has {_shown(place.shadows)} as the stack has"
    severity: Severity | None = None if place.shadows else "info"
    yield Seen(what, "export PYTHONNOUSERSITE=1", where=place.directory, severity=severity)


@RULES.rule(
    "HD064",
    "PYTHONPATH leads past the stack's packages",
    severity="error",
    why="Its directories are looked into before the stack's own: ranks import other versions than the lock says, built "
    "for another Python, NumPy or MPI. Activating a stack unsets it; what is set afterwards holds.",
)
def python_path(facts: Python) -> Iterator[Seen]:
    """An error where a directory holds what the stack or Python holds too, or is of another Python."""
    for places, whence, mend in (
        (facts.given, "PYTHONPATH of the site's file", "take PYTHONPATH out of `environment` in the site's file"),
        (facts.shell, "PYTHONPATH of your shell", "unset PYTHONPATH"),
    ):
        for place in places:
            yield _of(facts, place, whence, mend)


def _of(facts: Python, place: Place, whence: str, mend: str) -> Seen:
    stack = f"stack {facts.stack}" if facts.stack else "the stack"
    if place.shadows:
        return Seen(f"{whence} puts {_shown(place.shadows)} of {place.directory} before that of {stack}", mend)
    if place.python not in (None, facts.version):
        return Seen(f"{whence} names {place.directory}, of Python {place.python}; {stack} has {facts.version}", mend)
    return Seen(f"{whence} adds {place.directory} to {stack}", mend, severity="info")


def _shown(names: tuple[str, ...]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
