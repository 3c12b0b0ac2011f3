"""The page of doctor's rules, out of its catalogue: a heading for each, with its id as the anchor."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getdoc
from typing import Any

from hidl_cli.doctor.catalogue import rules
from hidl_cli.doctor.fix import FIXES
from hidl_workloads.doctor.finding import Rule

from .markdown import code, plain, table

_HEAD = """\
# Doctor's rules

What `hidl doctor` looks for, what `hidl run` looks for before it submits and in the job before the program starts, and
what is read out of what a failed run printed. An id means the same for ever; `hidl doctor explain ID` tells what stands
here. **error**: what is asked for will fail, or tell lies (exit code 4); **warning**: it works, slowly or by luck;
**info**: good to know. Each finding comes with what was seen, and with the command or line that mends it.

"""


def pages() -> dict[str, str]:
    """The page."""
    known = list(rules())
    rows = [(f"[{code(rule.id)}](#{rule.id.lower()})", rule.severity, plain(rule.title)) for rule in known]
    head = f"---\nhide: [toc]\n---\n\n{_HEAD}{table(('rule', '', 'finds'), rows)}"
    return {"reference/doctor-rules.md": head + "".join(line for rule in known for line in _entry(rule))}


def _entry(rule: Rule[Any]) -> Iterator[str]:
    yield f"## {rule.id}: {plain(rule.title)} {{ #{rule.id.lower()} }}\n\n"
    yield f"**{rule.severity}**. {plain(rule.why)}\n\n"
    if when := " ".join((getdoc(rule.check) or "").replace("``", "`").split()):
        yield f"When: {plain(when)}\n\n"
    if fix := FIXES.get(rule.id):
        yield f"`hidl doctor --fix` {plain(fix.does)}; to undo it: {plain(fix.undo)}.\n\n"
