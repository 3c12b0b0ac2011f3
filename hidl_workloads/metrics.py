"""The metrics document (``hidl.metrics/1``): what a program yields, written by rank 0 to the file ``$HIDL_METRICS``."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

# Student's t for a two-sided 95 % interval by degrees of freedom (NIST/SEMATECH e-Handbook, table 1.3.6.7.2).
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T95_BEYOND = 2.12  # 16 degrees of freedom: an upper bound for all larger ones


@dataclass(frozen=True)
class Metric:
    """``samples`` are what ``value`` comes from: of the timed steps, or one for each rank."""

    name: str
    value: float | str
    unit: str
    samples: Sequence[float | str]


def mean_and_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The mean, and the half width of its 95 % interval: t·s/sqrt(n); 0 for a single sample."""
    n = len(samples)
    if n < 2:
        return fmean(samples), 0.0
    t = _T95[n - 2] if n - 2 < len(_T95) else _T95_BEYOND
    return fmean(samples), t * stdev(samples) / math.sqrt(n)


def write(
    world: Any,
    *,
    program: str,
    parameters: Mapping[str, str],
    versions: Mapping[str, str],
    metrics: Sequence[Metric],
) -> None:
    """Write the document (collective over ``world``); nothing is written where ``$HIDL_METRICS`` names no file."""
    hosts = world.gather(platform.node())
    path = os.environ.get("HIDL_METRICS")
    if world.rank != 0 or not path:
        return
    document = {
        "schema": "hidl.metrics/1",
        "program": program,
        "world": {"size": world.size, "hosts": hosts},
        "parameters": dict(parameters),
        "versions": {"python": platform.python_version(), **versions},
        "metrics": [asdict(metric) for metric in metrics],
    }
    beside = Path(f"{path}.{os.getpid()}")
    beside.write_text(json.dumps(document, indent=2, ensure_ascii=False), encoding="utf-8", errors="surrogateescape")
    beside.replace(path)
