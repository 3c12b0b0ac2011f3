"""Samples: the values that runs measured, with their provenance; the rows of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Precedes the digest in the series of a step during which another run used the same cores.
DISTURBED = "disturbed-"


@dataclass(frozen=True)
class Sample:
    """One value of one metric of one step of one run.

    ``created``: when the run was planned (ISO 8601, UTC). ``series`` identifies what can be compared over time: a
    digest of site, partition, workload, parameters, stack, launcher, MPI library and placement, but not of lock, hosts
    or tuning, whose changes are of interest. ``rank``: None for a value of the whole step, else the rank's number.
    ``point``: the ``parameters`` of the matrix.
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

    @property
    def is_disturbed(self) -> bool:
        """Did another run use the same cores meanwhile?"""
        return self.series.startswith(DISTURBED)
