"""The page of doctor's rules, out of its catalogue: a heading for each, with its id as the anchor."""

from __future__ import annotations

from hidl_cli.doctor.catalogue import rules

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
    text = "".join(
        f"## {rule.id}: {plain(rule.title)} {{ #{rule.id.lower()} }}\n\n**{rule.severity}**. {plain(rule.why)}\n\n"
        for rule in known
    )
    return {"reference/doctor-rules.md": f"---\nhide: [toc]\n---\n\n{_HEAD}{table(('rule', '', 'title'), rows)}{text}"}
