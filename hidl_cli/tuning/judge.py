"""One variable with one value against one library: does it fit, and if not, what helps."""

from __future__ import annotations

from dataclasses import dataclass

from hidl_cli.inputs.fields import Scalar
from hidl_cli.inputs.findings import clipped
from hidl_cli.mpi import Family
from hidl_cli.tuning import catalogue
from hidl_cli.tuning.catalogue import Reader, Variable
from hidl_cli.tuning.counterparts import counterpart
from hidl_cli.tuning.layers import LD_PRELOAD
from hidl_cli.tuning.values import DoesNotFit, canonical, plain


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
    known = catalogue.variable(name, family)
    if known is None and not (name == LD_PRELOAD or catalogue.pattern(name, family)):
        return _not_read(family, name)
    reader = known.reader(family) if known else None
    if reader and not reader.admits(version):
        return _too_new(reader, version, name)
    try:
        if known:
            return Fit(known.name, canonical(known, value))
        return Fit(name, plain(value))
    except DoesNotFit as unfit:
        return Misfit(f"{name}: {unfit.message}", unfit.expected, unfit.suggestion)


def readers_in_words(rows: tuple[Variable, ...]) -> str:
    """Who reads a variable, and since when."""
    return ", ".join(str(reader) for row in rows for reader in row.readers)


def _not_read(family: Family, name: str) -> Misfit:
    if rows := catalogue.variables(name):
        return _of_another_family(family, name, readers_in_words(rows))
    if pattern := catalogue.pattern(name):
        return _of_another_family(family, name, ", ".join(pattern.families))
    meant = catalogue.nearest_name(name)
    message = f"there is no variable called `{clipped(name)}`"
    if meant is None or catalogue.variable(meant, family):
        return Misfit(message, f"a variable that {family} reads (hidl tuning list --mpi {family})", meant, on_name=True)
    other = _of_another_family(family, meant, readers_in_words(catalogue.variables(meant)))
    return Misfit(f"{message}, and {other.message}", other.expected, other.suggestion, on_name=True)


def _of_another_family(family: Family, name: str, readers: str) -> Misfit:
    """The variable is known, and this family does not read it: that it would be ignored in silence is the fault."""
    message = f"{family} does not read `{clipped(name)}`; it is read by {readers}"
    other = counterpart(name, family)
    if other is None:
        return Misfit(message, f"no such line: no counterpart on {family} is known", on_name=True)
    return Misfit(message, f"its counterpart on {family}: {other}", other.variable or None, on_name=True)


def _too_new(reader: Reader, version: str | None, name: str) -> Misfit:
    message = f"{reader.family} {version} does not read `{clipped(name)}`; it is read by {reader}"
    return Misfit(message, "no such line, or a newer library", on_name=True)
