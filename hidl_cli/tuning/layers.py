"""The effective tuning of a run: which variable has which value, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hidl_cli.errors import InvalidInput
from hidl_cli.inputs.fields import Scalar
from hidl_cli.inputs.findings import Finding
from hidl_cli.mpi import Library

#: Read by the dynamic linker, whatever the MPI.
LD_PRELOAD = "LD_PRELOAD"


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
    """Lay the layers over one another, the later over the earlier, and all over the presets of the library's family.

    A variable that has several names is one variable, and keeps the name by which the last layer calls it. Raises
    ``InvalidInput`` with every variable that the library does not read and every value that does not fit, in whatever
    layer, and with what excludes one another.
    """
    from hidl_cli.tuning.preload import conflict

    merged: dict[str, Setting] = {}
    findings: list[Finding] = []
    for layer in (*_presets(library, layers, gpus=gpus), *layers):
        settled, faults = _settle(library, layer)
        merged |= settled
        findings += faults
    if not findings and (both := conflict(merged.values(), library.environment)):
        findings.append(both)
    if findings:
        version = f" {library.version}" if library.version else ""
        raise InvalidInput(
            f"the tuning does not fit {library.family}{version} ({library.name})",
            findings=findings,
            hint=f"hidl tuning list --mpi {library.family} shows what it reads",
        )
    return tuple(merged.values())


def _settle(library: Library, layer: Layer) -> tuple[dict[str, Setting], list[Finding]]:
    """The settings of one layer by their variables' main names, and what is wrong with it."""
    from hidl_cli.tuning.judge import Misfit, judge

    settled: dict[str, Setting] = {}
    findings: list[Finding] = []
    for name, value in layer.values.items():
        judged = judge(library.family, library.version, name, value)
        if isinstance(judged, Misfit):
            message = f"{judged.message} ({layer.origin})"
            findings.append(Finding(message, judged.expected, (name,), suggestion=judged.suggestion))
        elif (other := settled.get(judged.variable)) and other.value != judged.value:
            message = f"{other.name} and {name} are one variable, with two values ({layer.origin})"
            findings.append(Finding(message, "one of them", (name,)))
        else:
            settled[judged.variable] = Setting(name, judged.value, layer.origin)
    return settled, findings


def _presets(library: Library, layers: Sequence[Layer], *, gpus: bool) -> Iterator[Layer]:
    from hidl_cli.tuning.preload import by_hand
    from hidl_cli.tuning.presets import applying

    above = {name: value for layer in layers for name, value in layer.values.items()}
    switched_on = {name for name, value in above.items() if name != LD_PRELOAD and str(value) not in ("0", "False")}
    if by_hand(above, library.environment):
        switched_on.add(LD_PRELOAD)
    for preset in applying(library, frozenset(switched_on), gpus=gpus):
        yield Layer(f"preset of {library.family} ({preset.source})", preset.values)
