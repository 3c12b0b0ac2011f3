"""Check one variable with one value against one MPI library."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hidl_cli.inputs.fields import Scalar
from hidl_cli.inputs.problems import clipped
from hidl_cli.mpi import Family
from hidl_cli.tuning import catalogue
from hidl_cli.tuning.catalogue import Reader, Variable
from hidl_cli.tuning.counterparts import find_counterpart
from hidl_cli.tuning.settings import LD_PRELOAD
from hidl_cli.tuning.values import InvalidValue, check_exported, format_plain, format_value

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
