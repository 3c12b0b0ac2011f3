"""Parse the output of Horovod's synthetic benchmarks: images per second of each iteration, and their mean.

::

    Iter #0: 321.9 img/sec per GPU
    Img/sec per GPU: 316.4 +-2.2
    Total img/sec on 2 GPU(s): 632.8 +-4.4

``+-`` precedes 1.96 standard deviations of the iterations. Line breaks are treated as blanks, so that transcripts with
wrapped lines, such as those on slides, can also be parsed.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from hidl_cli.errors import MetricMissing

Metrics = dict[str, dict[str, Any]]

_NUMBER = r"(\d+(?:\.\d+)?)"
_ITERATION = re.compile(rf"\bIter #(\d+): {_NUMBER} img/sec per ([CG]PU)\b")
_EACH = re.compile(rf"(?<!Total )\bImg/sec per ([CG]PU): {_NUMBER} ?\+- ?{_NUMBER}")
_TOTAL = re.compile(rf"\bTotal img/sec on (\d+) ([CG]PU)\(s\): {_NUMBER} ?\+- ?{_NUMBER}")

# Both means are rounded to one decimal; the total is computed from the unrounded mean.
_ROUNDING = Decimal("0.05")


def parse(text: str) -> Metrics:
    """Return ``images_per_second`` of all ranks and ``images_per_second_per_rank``, in images/s.

    Both have a sample for each iteration, or only the mean if the iterations were not printed. Raises ``MetricMissing``
    if one of the last two lines is missing or repeated, or if they contradict each other.
    """
    words = " ".join(text.split())
    each, total = _find_one(_EACH, words, "Img/sec per ..."), _find_one(_TOTAL, words, "Total img/sec on ...")
    ranks, mean = int(total[1]), float(each[2])
    difference = abs(Decimal(total[3]) - ranks * Decimal(each[2]))
    if each[1] != total[2] or difference > (ranks + 1) * _ROUNDING:
        raise MetricMissing(
            f"lines in the output of Horovod's benchmark contradict each other: {each[0]!r} and {total[0]!r}",
            hint="check whether the output is from several runs",
        )
    iterations = _iterations(words)
    return {
        "images_per_second": {
            "value": float(total[3]),
            "unit": "images/s",
            "samples": [ranks * rate for rate in iterations] or [float(total[3])],
        },
        "images_per_second_per_rank": {"value": mean, "unit": "images/s", "samples": iterations or [mean]},
    }


def _find_one(pattern: re.Pattern[str], words: str, name: str) -> re.Match[str]:
    found = list(pattern.finditer(words))
    if len(found) != 1:
        raise MetricMissing(
            f"expected the line `{name}` of Horovod's synthetic benchmark once, found it {len(found)} times",
            hint="hidl logs shows what the program printed",
        )
    return found[0]


def _iterations(words: str) -> list[float]:
    """Return the images per second of each iteration; raises ``MetricMissing`` if an iteration is missing."""
    found = [(int(match[1]), float(match[2])) for match in _ITERATION.finditer(words)]
    if [number for number, _ in found] != list(range(len(found))):
        raise MetricMissing(
            f"the iterations of Horovod's synthetic benchmark are numbered {[number for number, _ in found]}",
            hint="hidl logs shows what the program printed",
        )
    return [rate for _, rate in found]
