"""Samples: what runs measured, one value each, with all that tells where it comes from. The rows of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """One value of one metric of one step of one run.

    ``created`` is when the run was planned (ISO 8601, UTC). ``series`` names what may be compared with one another
    over time: a digest over site, partition, workload, parameters, stack, launcher, MPI library and placement, but not
    over lock, hosts or tuning, which are what changes. ``rank`` is None for a value of the whole step, and a rank's
    number where the metric has one sample for each. ``point``: those of the ``parameters`` that a matrix changes.
    """

    run: str
    created: str
    site: str
    partition: str | None
    workload: str
    series: str
    stack: str
    lock: str
    launcher: str
    mpi: str
    nodes: int
    ranks: int
    repetition: int
    metric: str
    unit: str
    better: str | None
    value: float
    rank: int | None = None
    hosts: tuple[str, ...] = ()
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    point: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    tuning: Mapping[str, str] = field(default_factory=dict)
    verdict: str | None = None
