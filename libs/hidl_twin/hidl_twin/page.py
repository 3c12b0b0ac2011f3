"""The documentation page of rehearsed sites."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hidl_cli.quoting import sh_line

if TYPE_CHECKING:
    from pathlib import Path

    from hidl_twin.rehearsal import Rehearsal, Stage

_TITLE = "# Sites, rehearsed\n"
_HEAD = f"""{_TITLE}
`hidl rehearse` brings up [a twin of a site](../how-to/rehearse-a-site.md), types `hidl install`, `hidl run` and
`hidl validate` on its login host, and takes it down. Seconds are those of the machine that did it, and say nothing of
the site. Made by `make rehearse`; a call for single sites (`hidl rehearse SITE... --report FILE`) replaces their rows.
The last was

```console
$ {{command}}
```

| site | on | up | install | run | validate | outcome |
|---|---|---|---|---|---|---|
"""
_ROW = re.compile(r"^\| (?P<site>[a-z0-9][^ |]*) \|.*\n", re.MULTILINE)


def page(rehearsals: Sequence[Rehearsal], left_out: Mapping[str, str], command: Sequence[str], before: str = "") -> str:
    """Return the page in Markdown; ``left_out``: sites that cannot be rehearsed, with reasons.

    ``before``: the page so far; its rows of other sites are kept.
    """
    rows = {found["site"]: found[0] for found in _ROW.finditer(before.partition("|---|")[2])}
    rows |= {each.site: _row(each) for each in rehearsals}
    rows |= {name: f"| {name} | | | | | | left out: {_cell(reason)} |\n" for name, reason in left_out.items()}
    return _HEAD.format(command=sh_line(command)) + "".join(rows[name] for name in sorted(rows))


def is_page(file: Path) -> bool:
    """Return whether a file is a page that ``page`` has rendered."""
    with file.open("rb") as content:
        return content.read(len(_TITLE)) == _TITLE.encode()


def _row(rehearsal: Rehearsal) -> str:
    columns: dict[str, list[Stage]] = {"up": [], "install": [], "run": [], "validate": []}
    for step in rehearsal.steps:
        word = step.title.split()[1]
        columns["up" if word == "cluster" else word].append(step)
    cells = [_steps(steps) for steps in columns.values()]
    return f"| {rehearsal.site} | {rehearsal.began:%Y-%m-%d} | {' | '.join(cells)} | {_cell(rehearsal.outcome)} |\n"


def _steps(steps: Sequence[Stage]) -> str:
    if not steps:
        return ""
    return f"{sum(step.seconds for step in steps):.0f} s" + (
        "" if all(not step.exit_code for step in steps) else " fail"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
