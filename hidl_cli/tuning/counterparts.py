"""Counterparts: what does, on another MPI family, what a variable does.

Data, in ``recipes/tuning/counterparts.csv``: only what a document or a source says; where nothing is known, nothing is
said. A counterpart is another variable with its value, or a way that is no variable (an option of the launcher).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from hidl_cli.mpi import Family
from hidl_cli.tuning.catalogue import rows_of, variable, variables


@dataclass(frozen=True)
class Counterpart:
    """``variable`` (empty: there is none, but a way) on ``families`` does what ``of`` does; ``how`` says more."""

    of: str
    families: tuple[str, ...]
    variable: str
    how: str
    provenance: str

    def __str__(self) -> str:
        if not self.variable:
            return self.how
        return f"`{self.variable}`" + (f" ({self.how})" if self.how else "")


def counterpart(name: str, family: Family) -> Counterpart | None:
    """What does on ``family`` what the variable does elsewhere; None: not known."""
    for known in counterparts(name):
        if family in known.families:
            return known
    return _same_control_variable(name, family)


def counterparts(name: str) -> tuple[Counterpart, ...]:
    """All known counterparts of a variable, by any of its names."""
    names = {name, *(other for variable in variables(name) for other in variable.names)}
    return tuple(known for known in _all() if known.of in names)


def _same_control_variable(name: str, family: Family) -> Counterpart | None:
    """A control variable keeps its name from MPICH to MPICH, whatever prefixes each of them reads it by."""
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
