"""Check whether an MPI library reads a variable, and whether its value is valid."""

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

#: The dynamic linker reads this variable regardless of the MPI library.
LD_PRELOAD = "LD_PRELOAD"
#: Prefix that marks run-time variables among sweep parameters (``mpi.MV2_IBA_EAGER_THRESHOLD``).
COMPARED = "mpi."
#: Value of a sweep parameter that leaves its run-time variable as it would be without the sweep.
DEFAULT = "default"
#: Origin of variables that a sweep sets.
MATRIX = "--matrix"


@dataclass(frozen=True)
class Layer:
    """Variables with a common origin, such as ``site frontera`` or ``command line``."""

    origin: str
    values: Mapping[str, Scalar]


@dataclass(frozen=True)
class Setting:
    """A variable in the effective tuning, with its exported value and its origin."""

    name: str
    value: str
    origin: str


def compared_variables(point: Mapping[str, Scalar]) -> dict[str, str]:
    """Return the run-time variables set by a combination of sweep values, except those left at their default."""
    return {
        name.removeprefix(COMPARED): str(value)
        for name, value in point.items()
        if name.startswith(COMPARED) and value != DEFAULT
    }


def without_variables(point: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a combination of sweep values without the run-time variables, which leaves the program's parameters."""
    return {name: value for name, value in point.items() if not name.startswith(COMPARED)}


# Counterparts of variables in other MPI families, from ``recipes/tuning/counterparts.csv``.


@dataclass(frozen=True)
class VariableCounterpart:
    """A variable's counterpart: in the MPI families ``families``, ``variable`` has the same effect as variable ``of``.

    If ``variable`` is empty, only the description in ``how`` is available.
    """

    of: str
    families: tuple[str, ...]
    variable: str
    how: str
    provenance: str

    def __str__(self) -> str:
        if not self.variable:
            return self.how
        return f"`{self.variable}`" + (f" ({self.how})" if self.how else "")


def find_counterpart(name: str, family: Family) -> VariableCounterpart | None:
    """Return a variable's counterpart in ``family``, or None if unknown."""
    for known in list_counterparts(name):
        if family in known.families:
            return known
    return _same_control_variable(name, family)


def list_counterparts(name: str) -> tuple[VariableCounterpart, ...]:
    """Return all counterparts of a variable, given any of its names."""
    names = names_of(name)
    return tuple(known for known in _all() if known.of in names)


def _same_control_variable(name: str, family: Family) -> VariableCounterpart | None:
    """Return the counterpart of a control variable in an MPICH derivative that gives the variable another prefix."""
    for other in (other for known in variables(name) for other in known.names):
        if (found := variable(other, family)) and name not in found.names:
            return VariableCounterpart(name, (family,), found.name, "the same control variable", found.provenance)
    return None


@cache
def _all() -> tuple[VariableCounterpart, ...]:
    return tuple(
        VariableCounterpart(
            row["of"], tuple(row["families"].split(";")), row["variable"], row["how"], row["provenance"]
        )
        for row in rows_of("counterparts")
    )


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MISSPELLING = 0.95  # a name that matches a pattern is a misspelling if it is this similar to a known name


@dataclass(frozen=True)
class ValidSetting:
    """The main name of a variable that the library reads, and its exported value."""

    variable: str
    value: str


@dataclass(frozen=True)
class InvalidSetting:
    """A setting that the library does not accept. ``on_name`` is True if its name is wrong rather than its value."""

    message: str
    expected: str
    suggestion: str | None = None
    on_name: bool = False


def judge(
    family: Family, version: str | None, name: str, value: Scalar, *, exported: bool = False
) -> ValidSetting | InvalidSetting:
    """Check whether a library reads a variable and accepts its value.

    Args:
        family: Family of the library.
        version: Version of the library, or None if unknown.
        name: Name of the variable.
        value: Value from a file or an option.
        exported: True if the value comes from a shell and reaches the ranks without formatting by hidl.
    """
    if not _NAME.fullmatch(name):
        return InvalidSetting(f"invalid variable name `{clipped(name)}`", "letters, digits and _", on_name=True)
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
            return ValidSetting(known.name, format_value(known, value))
        return ValidSetting(name, format_plain(value))
    except InvalidValue as error:
        return InvalidSetting(f"{name}: {error.message}", error.expected, error.suggestion)


def format_readers(rows: tuple[Variable, ...]) -> str:
    """Format the families that read a variable, with their versions."""
    return ", ".join(str(reader) for row in rows for reader in row.readers)


def _unread(family: Family, name: str) -> InvalidSetting | None:
    """Explain why a family does not read a variable that the catalogue does not list for this family.

    Returns None if the name matches a pattern and is not a misspelling.
    """
    if catalogue.pattern(name, family):
        known = catalogue.nearest_name(name, family, likeness=_MISSPELLING)
        return _unknown(family, name, known) if known else None
    if rows := catalogue.variables(name):
        return _of_another_family(family, name, format_readers(rows))
    if namesake := _namesake(family, name):
        return namesake
    if known := catalogue.nearest_name(name, family):
        return _unknown(family, name, known)
    if pattern := catalogue.pattern(name):
        return _of_another_family(family, name, ", ".join(pattern.families))
    return _unknown(family, name, catalogue.nearest_name(name))


def _namesake(family: Family, name: str) -> InvalidSetting | None:
    """Suggest the known variable whose name differs only in the prefix, or that variable's counterpart.

    Such a variable has the intended meaning, whereas the variable with the most similar spelling might not.
    """
    names = catalogue.namesakes(name)
    own = (known for known in names if catalogue.variable(known, family))
    elsewhere = (known for known in names if find_counterpart(known, family))
    known = next(own, None) or next(elsewhere, None)
    return _unknown(family, name, known) if known else None


def _unknown(family: Family, name: str, suggestion: str | None) -> InvalidSetting:
    message = f"unknown variable `{clipped(name)}`"
    if suggestion is None or catalogue.variable(suggestion, family) or catalogue.pattern(suggestion, family):
        expected = f"a variable that {family} reads (hidl tuning list --mpi {family})"
        return InvalidSetting(message, expected, suggestion, on_name=True)
    other = _unread(family, suggestion)
    if other is None:
        return InvalidSetting(message, f"`{suggestion}`", suggestion, on_name=True)
    return InvalidSetting(f"{message}, and {other.message}", other.expected, other.suggestion, on_name=True)


def _of_another_family(family: Family, name: str, readers: str) -> InvalidSetting:
    return _ignored(family, family, name, readers)


def _of_another_version(reader: Reader, version: str | None, name: str) -> InvalidSetting:
    return _ignored(reader.family, f"{reader.family} {version}", name, str(reader))


def _ignored(family: Family, library: str, name: str, readers: str) -> InvalidSetting:
    message = f"{library} does not read `{clipped(name)}`, a variable of {readers}"
    other = find_counterpart(name, family)
    if other is None:
        return InvalidSetting(message, f"no such setting, because {family} has no known counterpart", on_name=True)
    return InvalidSetting(message, f"its counterpart for {family}: {other}", other.variable or None, on_name=True)


# Checks for the tuning in site, stack and workload files.


_Path = tuple[str | int, ...]


def check_site(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check ``tuning.<family>`` in a site file, and each library's ``tuning`` against its family and version."""
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
    """Check ``tuning.<family>`` in a site, stack or workload file, regardless of the library's version."""
    tuning = mapping(data, "tuning")
    for word in tuning:
        if family := _family(word):
            yield from _faults(family, None, mapping(tuning, word), ("tuning", word))


def _faults(family: Family, version: str | None, values: Mapping[str, Any], path: _Path) -> Iterator[Fault]:
    seen: dict[str, tuple[str, str]] = {}
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            continue  # the schema reports this
        judged = judge(family, version, name, value)
        if isinstance(judged, InvalidSetting):
            yield Fault((*path, name), judged.message, judged.expected, judged.suggestion, on_key=judged.on_name)
            continue
        other, text = seen.setdefault(judged.variable, (name, judged.value))
        if text != judged.value:
            message = f"{other} and {name} are the same variable, with different values"
            yield Fault((*path, name), message, "only one of the two names")


def _family(word: object) -> Family | None:
    return next((family for family in FAMILIES if family == word), None)
