"""The page of the doctor's rules: a heading for each, with its id as the anchor."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getdoc
from typing import Any

from hidl_cli.doctor.context import fixes, list_rules
from hidl_workloads.doctor.finding import Rule

from .markdown import code, plain, table

_HEAD = """\
# Doctor's rules

Rules that `hidl doctor` checks, that `hidl run` checks before it submits and in the job before the program starts, and
that match the output of a failed run. Ids never change; `hidl doctor explain ID` prints the same text.
**error**: runs fail, or give wrong results (exit code 4); **warning**: runs may fail, or be slow; **info**: for
information. Each finding states what was found, and the command or line that fixes it.

"""


def pages() -> dict[str, str]:
    """The page."""
    known = list_rules()
    rows = [(f"[{code(rule.id)}](#{rule.id.lower()})", rule.severity, plain(rule.title)) for rule in known]
    head = f"---\nhide: [toc]\n---\n\n{_HEAD}{table(('rule', 'severity', 'title'), rows)}"
    return {"reference/doctor-rules.md": head + "".join(line for rule in known for line in _entry(rule))}


def _entry(rule: Rule[Any]) -> Iterator[str]:
    yield f"## {rule.id}: {plain(rule.title)} {{ #{rule.id.lower()} }}\n\n"
    yield f"**{rule.severity}**. {plain(rule.why)}\n\n"
    if when := " ".join((getdoc(rule.check) or "").replace("``", "`").split()):
        yield f"When: {plain(when)}\n\n"
    if fix := fixes().get(rule.id):
        yield f"`hidl doctor --fix` {plain(fix.does)}; to undo: {plain(fix.undo)}.\n\n"
