"""Samples without runs, for what is computed of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from hidl_cli.analysis.samples import Sample

BEGIN = datetime(2026, 1, 1, 2, tzinfo=timezone.utc)


def sample(value: float, *, night: float = 0, **fields: Any) -> Sample:
    """One sample of the run of that night."""
    values = {
        "run": f"night{night:05.1f}",
        "created": (BEGIN + timedelta(days=night)).isoformat(),
        "site": "machine",
        "partition": None,
        "workload": "toy",
        "series": "a1",
        "stack": "mpi",
        "lock": "lock1",
        "launcher": "srun",
        "mpi": "mpich 4.3",
        "nodes": 1,
        "ranks": 2,
        "repetition": 1,
        "metric": "rate",
        "unit": "items/s",
        "better": "higher",
        "hosts": ("n1", "n2"),
        **fields,
    }
    return Sample(value=value, **values)


def one_run(values: Sequence[float], *, night: float = 0, **fields: Any) -> list[Sample]:
    """The repetitions of one run."""
    return [sample(value, night=night, repetition=i, **fields) for i, value in enumerate(values, 1)]


def nights(values: Sequence[float], *, first: int = 0, **fields: Any) -> list[Sample]:
    """One run of one repetition each night."""
    return [sample(value, night=first + night, **fields) for night, value in enumerate(values)]
