"""Counterparts of a variable in other MPI families, from ``recipes/tuning/counterparts.csv``.

The table lists only what a document or a source says. A counterpart is a variable with its value, or another way, such
as an option of the launcher.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from hidl_cli.mpi import Family
from hidl_cli.tuning.catalogue import names_of, rows_of, variable, variables


@dataclass(frozen=True)
class Counterpart:
    """``variable`` does for ``families`` what ``of`` does elsewhere; empty: only ``how`` describes it."""

    of: str
    families: tuple[str, ...]
    variable: str
    how: str
    provenance: str

    def __str__(self) -> str:
        if not self.variable:
            return self.how
        return f"`{self.variable}`" + (f" ({self.how})" if self.how else "")


def find_counterpart(name: str, family: Family) -> Counterpart | None:
    """The counterpart of a variable for ``family``; None if unknown."""
    for known in list_counterparts(name):
        if family in known.families:
            return known
    return _same_control_variable(name, family)


def list_counterparts(name: str) -> tuple[Counterpart, ...]:
    """All counterparts of a variable, by any of its names."""
    names = names_of(name)
    return tuple(known for known in _all() if known.of in names)


def _same_control_variable(name: str, family: Family) -> Counterpart | None:
    """An MPICH control variable keeps its name in all derivatives, under another prefix."""
    for other in (other for known in variables(name) for other in known.names):
        if (found := variable(other, family)) and name not in found.names:
            how = "the same control variable"
            return Counterpart(name, (family,), found.name, how, found.provenance)
    return None


@cache
def _all() -> tuple[Counterpart, ...]:
    return tuple(
        Counterpart(row["of"], tuple(row["families"].split(";")), row["variable"], row["how"], row["provenance"])
        for row in rows_of("counterparts")
    )
