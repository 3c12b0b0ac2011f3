"""One variable with one value against one library: does it fit, and if not, what helps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hidl_cli.inputs.fields import Scalar
from hidl_cli.inputs.findings import clipped
from hidl_cli.mpi import Family
from hidl_cli.tuning import catalogue
from hidl_cli.tuning.catalogue import Reader, Variable
from hidl_cli.tuning.counterparts import counterpart
from hidl_cli.tuning.layers import LD_PRELOAD
from hidl_cli.tuning.values import DoesNotFit, canonical, plain

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ALL_BUT_THE_SAME = (
    0.95  # so like a known name that it is a misspelling, though names of its prefix are taken as they are
)


@dataclass(frozen=True)
class Fit:
    """It fits: ``variable`` is its main name, under which it is the same by any name; ``value`` as it is exported."""

    variable: str
    value: str


@dataclass(frozen=True)
class Misfit:
    """It does not: what is wrong, what was expected, the nearest valid word; ``on_name``: the name is what is wrong."""

    message: str
    expected: str
    suggestion: str | None = None
    on_name: bool = False


def judge(family: Family, version: str | None, name: str, value: Scalar) -> Fit | Misfit:
    """Does a library of that family and version (None: unknown) read the variable, and does the value fit it?"""
    if not _NAME.fullmatch(name):
        return Misfit(f"`{clipped(name)}` is no name of a variable", "letters, digits and _", on_name=True)
    known = catalogue.variable(name, family)
    if known is None and name != LD_PRELOAD and (unread := _unread(family, name)):
        return unread
    reader = known.reader(family) if known else None
    if reader and not reader.admits(version):
        return _of_another_version(reader, version, name)
    try:
        if known:
            return Fit(known.name, canonical(known, value))
        return Fit(name, plain(value))
    except DoesNotFit as unfit:
        return Misfit(f"{name}: {unfit.message}", unfit.expected, unfit.suggestion)


def readers_in_words(rows: tuple[Variable, ...]) -> str:
    """Who reads a variable, and since when."""
    return ", ".join(str(reader) for row in rows for reader in row.readers)


def _unread(family: Family, name: str) -> Misfit | None:
    """Why a name that is not in the family's catalogue is not read; None: it is read, known by its prefix alone."""
    if catalogue.pattern(name, family):
        meant = catalogue.nearest_name(name, family, likeness=_ALL_BUT_THE_SAME)
        return _unknown(family, name, meant) if meant else None
    if rows := catalogue.variables(name):
        return _of_another_family(family, name, readers_in_words(rows))
    if meant := catalogue.nearest_name(name, family):
        return _unknown(family, name, meant)
    if pattern := catalogue.pattern(name):
        return _of_another_family(family, name, ", ".join(pattern.families))
    return _unknown(family, name, catalogue.nearest_name(name))


def _unknown(family: Family, name: str, meant: str | None) -> Misfit:
    message = f"there is no variable called `{clipped(name)}`"
    if meant is None or catalogue.variable(meant, family) or catalogue.pattern(meant, family):
        expected = f"a variable that {family} reads (hidl tuning list --mpi {family})"
        return Misfit(message, expected, meant, on_name=True)
    other = _unread(family, meant)
    if other is None:
        return Misfit(message, f"`{meant}`", meant, on_name=True)
    return Misfit(f"{message}, and {other.message}", other.expected, other.suggestion, on_name=True)


def _of_another_family(family: Family, name: str, readers: str) -> Misfit:
    """The variable is known, and this family does not read it: that it would be ignored in silence is the fault."""
    return _ignored(family, family, name, readers)


def _of_another_version(reader: Reader, version: str | None, name: str) -> Misfit:
    return _ignored(reader.family, f"{reader.family} {version}", name, str(reader))


def _ignored(family: Family, library: str, name: str, readers: str) -> Misfit:
    message = f"{library} does not read `{clipped(name)}`; it is read by {readers}"
    other = counterpart(name, family)
    if other is None:
        return Misfit(message, f"no such line: no counterpart on {family} is known", on_name=True)
    return Misfit(message, f"its counterpart on {family}: {other}", other.variable or None, on_name=True)
