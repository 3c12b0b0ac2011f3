"""Words of the effective tuning: layers of variables, and settings with their origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hidl_cli.inputs.fields import Scalar

#: Read by the dynamic linker, with any MPI library.
LD_PRELOAD = "LD_PRELOAD"


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
