"""The page of public logs that were diagnosed, out of ``tests/outside/logs.yaml`` and what is found in them now."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from hidl_cli.diagnoses import find_causes

from .markdown import plain, table

_LOGS = Path(__file__).parents[2] / "tests" / "outside" / "logs.yaml"
_HEAD = """\
# Public logs, diagnosed

Excerpts of public reports, looked up after the known errors were written down, and tried once with
[`hidl doctor --log`](../how-to/find-what-is-wrong.md#any-log): {logs} logs of {programs} programs. The first try found
the right cause in {right}, none in {none}, and a wrong one in {wrong}. Most of what it missed was added afterwards; the
last column, made each time that these pages are built, is what it finds now.

"""


def pages() -> dict[str, str]:
    """The page."""
    logs: list[dict[str, Any]] = yaml.safe_load(_LOGS.read_text(encoding="utf-8"))
    tries = Counter(log["first"] for log in logs)
    head = _HEAD.format(
        logs=len(logs),
        programs=len({log["program"] for log in logs}),
        **{key: tries[key] for key in ("right", "none", "wrong")},
    )
    rows = [(f"[{plain(log['program'])}]({log['source']})", log["first"], _found(log["text"])) for log in logs]
    return {"reference/diagnosed-logs.md": head + table(("log of", "at the first try", "found now"), rows)}


def _found(text: str) -> str:
    """The first cause in a log, linked to its rule."""
    causes = find_causes(text)
    return f"[{plain(causes[0].title)}](doctor-rules.md#{causes[0].rule.lower()})" if causes else "nothing"
