"""Check one variable with one value against one MPI library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hidl_cli.inputs.check import Scalar
from hidl_cli.inputs.problems import Fault, clipped, mapping
from hidl_cli.mpi import FAMILIES, Family
from hidl_cli.tuning import catalogue
from hidl_cli.tuning.catalogue import (
    InvalidValue,
    Reader,
    Variable,
    check_exported,
    format_plain,
    format_value,
    names_of,
    rows_of,
    variable,
    variables,
)

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


# Counterparts of a variable in other MPI families, from ``recipes/tuning/counterparts.csv``.


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


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MISSPELLING = 0.95  # likeness to a known name above which a name with an open prefix is a misspelling


@dataclass(frozen=True)
class Fit:
    """The library reads the variable: ``variable`` is its main name, ``value`` as exported to the environment."""

    variable: str
    value: str


@dataclass(frozen=True)
class Misfit:
    """What is wrong, what was expected, and the nearest valid word; ``on_name``: the name is wrong, not the value."""

    message: str
    expected: str
    suggestion: str | None = None
    on_name: bool = False


def judge(family: Family, version: str | None, name: str, value: Scalar, *, exported: bool = False) -> Fit | Misfit:
    """Check whether a library reads the variable, and whether the value is valid.

    Args:
        family: Family of the library.
        version: Its version, None if unknown.
        name: Name of the variable.
        value: Value in a file or an option, which hidl formats.
        exported: Whether the ranks get ``value`` as it is, from a shell.
    """
    if not _NAME.fullmatch(name):
        return Misfit(f"invalid variable name `{clipped(name)}`", "letters, digits and _", on_name=True)
    known = catalogue.variable(name, family)
    if known is None and name != LD_PRELOAD and (unread := _unread(family, name)):
        return unread
    reader = known.reader(family) if known else None
    if reader and not reader.includes(version):
        return _of_another_version(reader, version, name)
    try:
        if known:
            if exported:
                check_exported(known, str(value))
            return Fit(known.name, format_value(known, value))
        return Fit(name, format_plain(value))
    except InvalidValue as unfit:
        return Misfit(f"{name}: {unfit.message}", unfit.expected, unfit.suggestion)


def format_readers(rows: tuple[Variable, ...]) -> str:
    """The families that read a variable, with their versions."""
    return ", ".join(str(reader) for row in rows for reader in row.readers)


def _unread(family: Family, name: str) -> Misfit | None:
    """Why the family does not read a name that is not in its catalogue; None if it reads any name with its prefix."""
    if catalogue.pattern(name, family):
        meant = catalogue.nearest_name(name, family, likeness=_MISSPELLING)
        return _unknown(family, name, meant) if meant else None
    if rows := catalogue.variables(name):
        return _of_another_family(family, name, format_readers(rows))
    if namesake := _namesake(family, name):
        return namesake
    if meant := catalogue.nearest_name(name, family):
        return _unknown(family, name, meant)
    if pattern := catalogue.pattern(name):
        return _of_another_family(family, name, ", ".join(pattern.families))
    return _unknown(family, name, catalogue.nearest_name(name))


def _namesake(family: Family, name: str) -> Misfit | None:
    """An unknown name that stands in the catalogue under another prefix: that variable, or its counterpart.

    What it means is known then, and the likest spelling may mean something else.
    """
    names = catalogue.namesakes(name)
    own = (known for known in names if catalogue.variable(known, family))
    elsewhere = (known for known in names if find_counterpart(known, family))
    meant = next(own, None) or next(elsewhere, None)
    return _unknown(family, name, meant) if meant else None


def _unknown(family: Family, name: str, meant: str | None) -> Misfit:
    message = f"unknown variable `{clipped(name)}`"
    if meant is None or catalogue.variable(meant, family) or catalogue.pattern(meant, family):
        expected = f"a variable that {family} reads (hidl tuning list --mpi {family})"
        return Misfit(message, expected, meant, on_name=True)
    other = _unread(family, meant)
    if other is None:
        return Misfit(message, f"`{meant}`", meant, on_name=True)
    return Misfit(f"{message}, and {other.message}", other.expected, other.suggestion, on_name=True)


def _of_another_family(family: Family, name: str, readers: str) -> Misfit:
    """A known variable that this family ignores without a warning."""
    return _ignored(family, family, name, readers)


def _of_another_version(reader: Reader, version: str | None, name: str) -> Misfit:
    return _ignored(reader.family, f"{reader.family} {version}", name, str(reader))


def _ignored(family: Family, library: str, name: str, readers: str) -> Misfit:
    message = f"{library} does not read `{clipped(name)}`; read by {readers}"
    other = find_counterpart(name, family)
    if other is None:
        return Misfit(message, f"no such line: no counterpart for {family} is known", on_name=True)
    return Misfit(message, f"its counterpart for {family}: {other}", other.variable or None, on_name=True)


# Check the tuning in site, stack and workload files.


_Path = tuple[str | int, ...]


def check_site(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check ``mpi.<name>.tuning`` of a site, by the library's family and version, and ``tuning.<family>``."""
    yield from check_by_family(data)
    libraries = mapping(data, "mpi")
    for name in libraries:
        library = mapping(libraries, name)
        version = library.get("version")
        if family := _family(library.get("family")):
            known = version if isinstance(version, str) else None
            yield from _faults(family, known, mapping(library, "tuning"), ("mpi", name, "tuning"))
            added = mapping(mapping(library, "with_gpus"), "tuning")
            yield from _faults(family, known, added, ("mpi", name, "with_gpus", "tuning"))


def check_by_family(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check ``tuning.<family>`` of a site, a stack or a workload, for any version."""
    tuning = mapping(data, "tuning")
    for word in tuning:
        if family := _family(word):
            yield from _faults(family, None, mapping(tuning, word), ("tuning", word))


def _faults(family: Family, version: str | None, values: Mapping[str, Any], path: _Path) -> Iterator[Fault]:
    seen: dict[str, tuple[str, str]] = {}
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            continue  # the schema reports it
        judged = judge(family, version, name, value)
        if isinstance(judged, Misfit):
            yield Fault((*path, name), judged.message, judged.expected, judged.suggestion, on_key=judged.on_name)
            continue
        other, text = seen.setdefault(judged.variable, (name, judged.value))
        if text != judged.value:
            yield Fault(
                (*path, name), f"{other} and {name} are the same variable, with different values", "one of them"
            )


def _family(word: object) -> Family | None:
    return next((family for family in FAMILIES if family == word), None)
