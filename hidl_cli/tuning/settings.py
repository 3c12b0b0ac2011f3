"""Words of the effective tuning: layers of variables, and settings with their origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hidl_cli.inputs.fields import Scalar

#: Read by the dynamic linker, with any MPI library.
LD_PRELOAD = "LD_PRELOAD"
#: Prefix of the names of run-time variables among the parameters of a matrix (``mpi.MV2_IBA_EAGER_THRESHOLD``).
COMPARED = "mpi."
#: Value of such a name if the variable keeps the value that a run without the matrix gives it.
DEFAULT = "default"
#: Origin of the values of variables that a run compares.
MATRIX = "--matrix"


@dataclass(frozen=True)
class Layer:
    """Variables from one place; ``origin`` names it, such as ``site frontera`` or ``command line``."""

    origin: str
    values: Mapping[str, Scalar]


@dataclass(frozen=True)
class Setting:
    """One variable of the effective tuning, its value as exported to the environment, and its origin."""

    name: str
    value: str
    origin: str


def compared_variables(point: Mapping[str, Scalar]) -> dict[str, str]:
    """Return the run-time variables that a point of a matrix sets, without those at their default."""
    return {
        name.removeprefix(COMPARED): str(value)
        for name, value in point.items()
        if name.startswith(COMPARED) and value != DEFAULT
    }


def without_variables(point: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the parameters of the program at a point of a matrix."""
    return {name: value for name, value in point.items() if not name.startswith(COMPARED)}
