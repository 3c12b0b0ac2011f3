"""The catalogue of run-time variables: which there are, who reads them, and what they take.

It is data, in ``recipes/tuning/variables.csv``: one row for each variable and group of families that treat it alike, so
a name can have several rows (the same control variable has other words, or another default, in MPICH and in MVAPICH),
and no family stands in two of them. ``recipes/tuning/patterns.csv`` holds what is known by its prefix alone. Nothing is
read before the first question.
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
from hidl_cli.inputs.findings import clipped
from hidl_cli.mpi import FAMILIES, Family

Type = Literal["bool", "int", "size", "float", "enum", "range", "text", "path", "internal"]
TYPES: tuple[Type, ...] = get_args(Type)

_PREFIXES = ("MPIR_CVAR_", "MV2_", "MVP_", "MPICH_", "MPIR_PARAM_")
_READER = re.compile(r"([a-z0-9-]+?)(?:(>=|>)([0-9.]+))?(?:<([0-9.]+))?")
_WITHOUT_PREFIX = 0.9  # names of other programs are like many a name
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
T = TypeVar("T")


@dataclass(frozen=True)
class Reader:
    """A family that reads a variable, since when and until when.

    ``relation`` is ``>=`` or ``>``, for the version ``since``: ``>`` stands where the first release that reads it is
    not known, but the last one that does not is. ``until`` is the first release that is known not to read it any more.
    All are empty where nothing is known.
    """

    family: Family
    relation: str = ""
    since: str = ""
    until: str = ""

    def admits(self, version: str | None) -> bool:
        """Does that version read it? Where that is unknown: yes, as nothing speaks against it."""
        own = numbers(version)
        if not own:
            return True
        begun = not self.since or own > numbers(self.since) or (self.relation == ">=" and own == numbers(self.since))
        return begun and (not self.until or own < numbers(self.until))

    @property
    def versions(self) -> str:
        """Which versions, as in the table: ``>=2.3.6``."""
        ended = f"<{self.until}" if self.until else ""
        return f"{self.relation}{self.since}{',' if self.since and ended else ''}{ended}"

    def __str__(self) -> str:
        since = {"": "", ">=": f" from {self.since} on", ">": f" after {self.since}"}[self.relation]
        return self.family + since + (f" before {self.until}" if self.until else "")


@dataclass(frozen=True)
class Variable:
    """One variable as a group of families reads it.

    ``values``: the words of an enumeration (``a|b``; ``osu_*`` stands for any word that begins so) or the limits of a
    number (``low..high``, either may be missing). ``default`` is empty where it is unknown, or depends on the machine.
    ``also`` are its other names. ``meaning_from`` is ``name`` where nobody has said what it does, and its name was
    spelled out.
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
        """All names that its readers know it by, the main one first."""
        return (self.name, *self.also)

    @property
    def words(self) -> tuple[str, ...]:
        """The words of an enumeration."""
        return tuple(self.values.split("|")) if self.type == "enum" else ()

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The limits of a number, each None where there is none."""
        low, separator, high = self.values.partition("..")
        return (int(low) if low else None, int(high) if high else None) if separator else (None, None)

    def reader(self, family: Family) -> Reader | None:
        """How that family reads it; None: not at all."""
        return next((reader for reader in self.readers if reader.family == family), None)


@dataclass(frozen=True)
class Pattern:
    """Variables that are known by their prefix alone: any value is taken as it is."""

    prefix: str
    families: tuple[Family, ...]
    meaning: str
    provenance: str


def variables(name: str) -> tuple[Variable, ...]:
    """The variable of that name, as each group of families reads it; empty: it is not in the catalogue."""
    return _by_name().get(name, ())


def variable(name: str, family: Family) -> Variable | None:
    """The variable of that name as the family reads it, in any version."""
    return next((known for known in variables(name) if known.reader(family)), None)


def pattern(name: str, family: Family | None = None) -> Pattern | None:
    """The pattern that the name falls under, the longest prefix first; with ``family``, one that it reads."""
    fitting = [known for known in patterns() if name.startswith(known.prefix) and len(name) > len(known.prefix)]
    if family is not None:
        fitting = [known for known in fitting if family in known.families]
    return max(fitting, key=lambda known: len(known.prefix), default=None)


def all_variables() -> tuple[Variable, ...]:
    """The whole catalogue, by name."""
    return _rows()


def all_names() -> Iterable[str]:
    """All names of all variables."""
    return _by_name().keys()


def nearest_name(name: str, family: Family | None = None, *, likeness: float = 0.75) -> str | None:
    """The known name that this one is most likely a misspelling of; with ``family``, one that it reads.

    Compared is what follows the prefix, which all names of a library share; ``likeness`` is between 0 and 1.
    """
    prefix = next((known for known in _PREFIXES if name.upper().startswith(known)), "")
    known_names = all_names() if family is None else (known for known in all_names() if variable(known, family))
    rest = {known.removeprefix(prefix): known for known in known_names if known.startswith(prefix)}
    least = likeness if prefix else max(likeness, _WITHOUT_PREFIX)
    near = difflib.get_close_matches(clipped(name).upper().removeprefix(prefix), rest, n=1, cutoff=least)
    return rest[near[0]] if near else _by_prefix(name)


def numbers(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version, without zeros at the end: ``2.3.7-1`` is (2, 3, 7); empty where unknown."""
    match = _NUMBERS.match(version or "")
    found = [int(part) for part in match[0].split(".")] if match else []
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)


@cache
def patterns() -> tuple[Pattern, ...]:
    """What is known by its prefix alone."""
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
    """The name in capitals where it then falls under a pattern, as names in the environment are in capitals."""
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
        raise ValueError(f"{word!r} is no reader: a family, with >=version or >version, and <version")
    return Reader(_family(match[1]), match[2] or "", match[3] or "", match[4] or "")


def _family(word: str) -> Family:
    return _one_of(FAMILIES, word)


def _one_of(words: tuple[T, ...], word: str) -> T:
    for known in words:
        if known == word:
            return known
    raise ValueError(f"{word!r} is none of {words}")
