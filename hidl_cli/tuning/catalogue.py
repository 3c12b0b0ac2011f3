"""The catalogue of run-time variables: names, types, values, and the MPI families that read them.

``recipes/tuning/variables.csv`` has one row per variable and group of families that treat it alike: a name can have
several rows (the same control variable has other words, or another default, in MPICH and in MVAPICH), but one per
family. ``recipes/tuning/patterns.csv`` lists prefixes of which any name is valid. Both are read on first use.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar, get_args

from hidl_cli import paths
from hidl_cli.inputs.problems import clipped
from hidl_cli.mpi import FAMILIES, Family

Type = Literal["bool", "int", "size", "float", "enum", "range", "text", "path", "internal"]
TYPES: tuple[Type, ...] = get_args(Type)

_PREFIXES = ("MPIR_CVAR_", "MV2_", "MVP_", "MPICH_", "MPIR_PARAM_")
_READER = re.compile(r"([a-z0-9-]+?)(?:(>=|>)([0-9.]+))?(?:<([0-9.]+))?")
_WITHOUT_PREFIX = 0.9  # likeness required of a name without a known prefix: other programs' names are similar
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
T = TypeVar("T")


@dataclass(frozen=True)
class Reader:
    """A family that reads a variable, and the versions that do.

    ``relation`` to the version ``since``: ``>=``, or ``>`` if only the last version that does not read it is known.
    ``until``: the first version known to read it no longer. Empty if unknown.
    """

    family: Family
    relation: str = ""
    since: str = ""
    until: str = ""

    def includes(self, version: str | None) -> bool:
        """Whether that version reads it; True if unknown."""
        own = numbers(version)
        if not own:
            return True
        begun = not self.since or own > numbers(self.since) or (self.relation == ">=" and own == numbers(self.since))
        return begun and (not self.until or own < numbers(self.until))

    @property
    def versions(self) -> str:
        """The versions as in the table: ``>=2.3.6``."""
        ended = f"<{self.until}" if self.until else ""
        return f"{self.relation}{self.since}{',' if self.since and ended else ''}{ended}"

    def __str__(self) -> str:
        since = {"": "", ">=": f" since {self.since}", ">": f" after {self.since}"}[self.relation]
        return self.family + since + (f" before {self.until}" if self.until else "")


@dataclass(frozen=True)
class Variable:
    """One variable as a group of families reads it.

    ``values``: the words of an enumeration (``a|b``; ``osu_*``: any word with that prefix), those of a text that is
    read in any case, or the limits of a number (``low..high``, either may be missing). ``default``: empty if unknown or
    machine-dependent. ``also``: its other names. ``meaning_from``: ``name`` if the meaning is only its name, spelled
    out.
    """

    name: str
    type: Type
    values: str
    default: str
    readers: tuple[Reader, ...]
    also: tuple[str, ...]
    meaning: str
    meaning_from: str
    provenance: str

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, the main one first."""
        return (self.name, *self.also)

    @property
    def words(self) -> tuple[str, ...]:
        """The words of an enumeration, or of a text."""
        return tuple(self.values.split("|")) if self.values and self.type in ("enum", "text") else ()

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The limits of a number, each None if unlimited."""
        low, separator, high = self.values.partition("..")
        return (int(low) if low else None, int(high) if high else None) if separator else (None, None)

    def reader(self, family: Family) -> Reader | None:
        """How that family reads it; None if it does not."""
        return next((reader for reader in self.readers if reader.family == family), None)


@dataclass(frozen=True)
class Pattern:
    """A prefix of which any name is valid, with any value."""

    prefix: str
    families: tuple[Family, ...]
    meaning: str
    provenance: str


def variables(name: str) -> tuple[Variable, ...]:
    """The variable with that name, as each group of families reads it; empty if unknown."""
    return _by_name().get(name, ())


def names_of(name: str) -> frozenset[str]:
    """All names of the variable with that name, itself included."""
    return frozenset((name, *(other for known in variables(name) for other in known.names)))


def variable(name: str, family: Family) -> Variable | None:
    """The variable with that name as the family reads it, in any version."""
    return next((known for known in variables(name) if known.reader(family)), None)


def main_name(name: str, family: Family) -> str:
    """Return the main name of a variable that the family reads; an unknown name stays as it is."""
    known = variable(name, family)
    return known.name if known else name


def pattern(name: str, family: Family | None = None) -> Pattern | None:
    """The pattern with the longest prefix that matches; with ``family``, one that it reads."""
    matching = [known for known in patterns() if name.startswith(known.prefix) and len(name) > len(known.prefix)]
    if family is not None:
        matching = [known for known in matching if family in known.families]
    return max(matching, key=lambda known: len(known.prefix), default=None)


def all_variables() -> tuple[Variable, ...]:
    """The whole catalogue, sorted by name."""
    return _rows()


def all_names() -> Iterable[str]:
    """All names of all variables."""
    return _by_name().keys()


def namesakes(name: str) -> tuple[str, ...]:
    """The known names that differ from this one in the prefix alone, or have one where it has none."""
    folded = clipped(name).upper()
    rest = folded.removeprefix(next((prefix for prefix in _PREFIXES if folded.startswith(prefix)), ""))
    return tuple(prefix + rest for prefix in _PREFIXES if prefix + rest != name and prefix + rest in _by_name())


def nearest_name(name: str, family: Family | None = None, *, likeness: float = 0.75) -> str | None:
    """The known name that this one most likely misspells; with ``family``, one that it reads.

    Compares what follows the prefix; ``likeness`` is between 0 and 1.
    """
    prefix = next((known for known in _PREFIXES if name.upper().startswith(known)), "")
    known_names = all_names() if family is None else (known for known in all_names() if variable(known, family))
    rest = {known.removeprefix(prefix): known for known in known_names if known.startswith(prefix)}
    least = likeness if prefix else max(likeness, _WITHOUT_PREFIX)
    near = difflib.get_close_matches(clipped(name).upper().removeprefix(prefix), rest, n=1, cutoff=least)
    return rest[near[0]] if near else _by_prefix(name)


def numbers(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version, without trailing zeros: ``2.3.7-1`` is (2, 3, 7); empty if unknown."""
    match = _NUMBERS.match(version or "")
    found = [int(part) for part in match[0].split(".")] if match else []
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)


@cache
def patterns() -> tuple[Pattern, ...]:
    """The prefixes of which any name is valid."""
    return tuple(
        Pattern(
            row["prefix"],
            FAMILIES if row["families"] == "*" else tuple(_family(word) for word in row["families"].split(";")),
            row["meaning"],
            row["provenance"],
        )
        for row in rows_of("patterns")
    )


def rows_of(table: str) -> list[dict[str, str]]:
    """The rows of ``recipes/tuning/<table>.csv``."""
    with (paths.shipped() / "recipes" / "tuning" / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _by_prefix(name: str) -> str | None:
    """The name in capitals if it then matches a pattern."""
    folded = name.upper()
    found = pattern(folded)
    if found is None or name.startswith(found.prefix):
        return None
    return folded if name == name.lower() else found.prefix + name[len(found.prefix) :]


@cache
def _rows() -> tuple[Variable, ...]:
    return tuple(_variable(row) for row in rows_of("variables"))


@cache
def _by_name() -> Mapping[str, tuple[Variable, ...]]:
    found: dict[str, list[Variable]] = {}
    for known in _rows():
        for name in known.names:
            found.setdefault(name, []).append(known)
    return {name: tuple(rows) for name, rows in found.items()}


def _variable(row: Mapping[str, str]) -> Variable:
    name = row["name"]
    return Variable(
        name=name,
        type=_one_of(TYPES, row["type"]),
        values=row["values"],
        default=row["default"],
        readers=tuple(_reader(word) for word in row["readers"].split(";")),
        also=tuple(_other_name(name, word) for word in row["also"].split()),
        meaning=row["meaning"],
        meaning_from=row["meaning_from"],
        provenance=row["provenance"],
    )


def _other_name(name: str, word: str) -> str:
    """``word`` itself, or the name with that prefix in place of its own."""
    if word not in _PREFIXES:
        return word
    own = next(prefix for prefix in _PREFIXES if name.startswith(prefix))
    return word + name.removeprefix(own)


def _reader(word: str) -> Reader:
    match = _READER.fullmatch(word)
    if match is None:
        raise ValueError(f"invalid reader {word!r}: must be a family, with >=version or >version, and <version")
    return Reader(_family(match[1]), match[2] or "", match[3] or "", match[4] or "")


def _family(word: str) -> Family:
    return _one_of(FAMILIES, word)


def _one_of(words: tuple[T, ...], word: str) -> T:
    for known in words:
        if known == word:
            return known
    raise ValueError(f"invalid {word!r}: must be one of {words}")
