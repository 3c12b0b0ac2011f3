"""What Horovod's synthetic benchmarks print: images per second, each iteration's and the mean of all.

::

    Iter #0: 321.9 img/sec per GPU
    Img/sec per GPU: 316.4 +-2.2
    Total img/sec on 2 GPU(s): 632.8 +-4.4

What stands after ``+-`` is 1.96 standard deviations of the iterations. A transcript whose lines were broken, as on
slides, is read too: blanks and line ends count the same.
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

# Both means are printed with one decimal, and the total is a multiple of the one before it was rounded.
_ROUNDING = Decimal("0.05")


def parse(text: str) -> Metrics:
    """Return ``images_per_second`` of all ranks and ``images_per_second_per_rank``, in images/s.

    The samples of both are the iterations', as far as they were printed (slides leave them out), else the mean alone.
    Raises ``MetricMissing`` where the two last lines are not there exactly once, or contradict each other.
    """
    words = " ".join(text.split())
    each, total = _only(_EACH, words, "Img/sec per ..."), _only(_TOTAL, words, "Total img/sec on ...")
    ranks, mean = int(total[1]), float(each[2])
    difference = abs(Decimal(total[3]) - ranks * Decimal(each[2]))
    if each[1] != total[2] or difference > (ranks + 1) * _ROUNDING:
        raise MetricMissing(
            f"the lines of Horovod's benchmark contradict each other: {each[0]!r} and {total[0]!r}",
            hint="the output of more than one run may have come together",
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


def _only(pattern: re.Pattern[str], words: str, name: str) -> re.Match[str]:
    found = list(pattern.finditer(words))
    if len(found) != 1:
        raise MetricMissing(
            f"the line `{name}` of Horovod's synthetic benchmark is there {len(found)} times, not once",
            hint="hidl logs shows what the program printed",
        )
    return found[0]


def _iterations(words: str) -> list[float]:
    """Each iteration's images per second; ``MetricMissing`` where one between them is missing."""
    found = [(int(match[1]), float(match[2])) for match in _ITERATION.finditer(words)]
    if [number for number, _ in found] != list(range(len(found))):
        raise MetricMissing(
            f"the iterations of Horovod's synthetic benchmark are numbered {[number for number, _ in found]}",
            hint="hidl logs shows what the program printed",
        )
    return [rate for _, rate in found]
