"""Finding out which site this is: time, and how it grows with the number of site files."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Outcome
from hidl_cli.site.load import load_site

_SITE = """\
name: site{number}
title: One of many
extends: local
match: {{hostname: "login[0-9].site{number}", env: {{A: b}}}}
node_types:
"""


def measure() -> list[Outcome]:
    """Milliseconds with 30 site files of 150 node types each, and the growth from 10 to 100 such files."""
    seconds = {count: _detect(count) for count in (10, 30, 100)}
    return [
        Outcome("detect the site among 30", seconds[30] * 1e3, 50, "ms"),
        Outcome("growth from 10 to 100 sites", seconds[100] / seconds[10], 12, ""),
    ]


def _detect(count: int) -> float:
    """The best of five, in seconds."""
    facts = "".join(f"  n{i}: {{cores: 56, memory_gib: 192, gpus: 4}}\n" for i in range(150))
    with tempfile.TemporaryDirectory() as directory:
        sites = Path(directory) / "hidl" / "sites"
        sites.mkdir(parents=True)
        for number in range(count):
            (sites / f"site{number}.yaml").write_text(_SITE.format(number=number) + facts)
        before, os.environ["XDG_CONFIG_HOME"] = os.environ.get("XDG_CONFIG_HOME"), directory
        try:
            return min(_timed() for _ in range(5))
        finally:
            if before is None:
                del os.environ["XDG_CONFIG_HOME"]
            else:
                os.environ["XDG_CONFIG_HOME"] = before


def _timed() -> float:
    before = time.perf_counter()
    assert load_site().name == "local"
    return time.perf_counter() - before
