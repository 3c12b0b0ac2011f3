"""What may differ between what a tutorial shows and what its commands print now: these rules, and nothing else.

Each rule is a pattern and the word that takes the place of what it matches, on both sides, in this order.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

RULES = (
    # Names that are new each time.
    (r"\b\d{8}-\d{6}-([a-z0-9-]+?)-[0-9a-f]{4}\b", r"<\1 run>"),
    (r"(?<=[/ ])[0-9a-f]{12}(?=[/\s]|$)", "<digest>"),
    (r"/[0-9a-f]{8} @", "/<hash> @"),
    (r"\bSubmitted batch job \d+|\bjob \d+\b", "job <number>"),
    (r"(?m)^(\s*<\S+ run>\s+[A-Z_]+\s+)\d+\b", r"\1<job>"),
    # What a cache of packages spares.
    (r"(?m)^ *downloaded \S+ \(\d+ of \d+ downloads, .*\n", ""),
    # How long a scheduler takes to notice that a job has ended.
    (r"(?m)^running: the job is ending\n", ""),
    # Where it is.
    (r"\bpython3\.\d+", "python3"),
    # What was measured.
    (r"(?m)^(round \d+ of \d+, )\d+:\d\d left(: efficiency.*)?$", r"\1<seconds> left"),
    (r"\[ *\d+\.\d+ s\]", "[<seconds>]"),
    (r"-?\b\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\b\d+(?:\.\d+)+(?:e[+-]?\d+)?%?", "<number>"),
    (r"<number>( s| ms| us)\b", r"<number>\1"),
    (r"\b\d+ (KiB|MiB|GiB|bytes)\b", r"<number> \1"),
    (r"[━╸╺]+", "<bar>"),
    (r"\bcores_per_rank +\d+\b", "cores_per_rank <number>"),
    (r"\b\d{4}-\d\d-\d\d( |T)\d\d:\d\d(:\d\d)?", "<time>"),
    # A study's verdict is the machine's of that hour: the table before it is what must be there.
    (r"(?ms)^(pass|fail|inconclusive): \d+ ranks.*?(?=^picture|\Z)", "<verdict>\n"),
    (r"(?m)^\S+ is best in \w+[,;].*$", "<ranking>"),
    (r"(<(?:kmeans|pi) run>.*?)\b(pass|fail|inconclusive)\b", r"\1<verdict>"),
    # How wide columns are follows from all of these.
    (r"[ \t]+", " "),
    (r"(?m)^ | $", ""),
    (r"─+", "─"),
)


def renamed(text: str, home: Path) -> str:
    """``text`` with the places and the host of this machine called as the pages call them."""
    names = {home: "/home/you", Path(sys.prefix): "/home/you/hidl/.venv", REPOSITORY: "/home/you/hidl"}
    for place in sorted(names, key=lambda each: -len(str(each))):
        text = text.replace(str(place), names[place])
    return re.sub(rf"\b{re.escape(os.uname().nodename)}\b", "laptop", text)


def normal(text: str, home: Path) -> str:
    """``text`` with everything that may vary replaced by a word for it."""
    text = renamed(text, home)
    for pattern, word in RULES:
        text = re.sub(pattern, word, text)
    return text
