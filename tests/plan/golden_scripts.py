"""The golden job scripts: ``golden/NAME.sh`` holds what differs, and ``golden/common.sh`` holds each shared part once.

A line ``#@ PART`` in a golden script stands for the lines below ``#@ PART`` in ``common.sh``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

DIRECTORY = Path(__file__).with_name("golden")
COMMON = DIRECTORY / "common.sh"
_MARK = re.compile(r"^#@ (\S+)\n", re.MULTILINE)


def names() -> list[str]:
    """The names of all golden scripts."""
    return sorted(file.stem for file in DIRECTORY.glob("*.sh") if file != COMMON)


def read(name: str) -> str:
    """The whole script, exactly as hidl must render it."""
    return _MARK.sub(lambda mark: parts()[mark[1]], (DIRECTORY / f"{name}.sh").read_text(encoding="utf-8"))


def write(name: str, script: str) -> None:
    """Replace a golden script; shared parts that ``script`` holds unchanged are not repeated."""
    for part, text in parts().items():
        script = re.sub(f"^{re.escape(text)}", f"#@ {part}\n", script, flags=re.MULTILINE)
    (DIRECTORY / f"{name}.sh").write_text(script, encoding="utf-8")


@cache
def parts() -> dict[str, str]:
    """The shared parts by name, in the order of ``common.sh``."""
    _, *found = _MARK.split(COMMON.read_text(encoding="utf-8"))
    return dict(zip(found[::2], found[1::2], strict=True))
