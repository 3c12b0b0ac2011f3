"""The catalogue of run-time variables: names, types, values, and the MPI families that read them.

``recipes/tuning/variables.csv`` has one row per variable and group of families that treat it alike: a name can have
several rows (the same control variable has other words, or another default, in MPICH and in MVAPICH), but one per
family. ``recipes/tuning/patterns.csv`` lists prefixes of which any name is valid. Both are read on first use.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from hidl_cli import paths
from hidl_cli.inputs.problems import clipped, nearest, one_of
from hidl_cli.mpi import FAMILIES, Family

if TYPE_CHECKING:
    from hidl_cli.inputs.check import Scalar

_MAX = 2**31 - 1  # numbers and sizes are a C int in MVAPICH2 and MPICH alike
_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})
_SUFFIXES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_SIZE = re.compile(r"([+-]?[0-9]{1,20})([kmg]?)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}|0x[0-9a-f]{1,16}")
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
_PORTS = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")
_ATOI = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
#: The words that MPICH's parser of control variables reads, in this spelling only.
_CVAR_SWITCHES = {
    **dict.fromkeys(("1", "yes", "YES", "true", "TRUE", "on", "ON"), "1"),
    **dict.fromkeys(("0", "no", "NO", "false", "FALSE", "off", "OFF"), "0"),
}
_CVAR_PREFIXES = ("MPIR_CVAR_", "MPICH_", "MPIR_PARAM_", "MVP_")


class InvalidValue(ValueError):
    """What is wrong with a value, what was expected, and the nearest valid word."""

    def __init__(self, message: str, expected: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.suggestion = suggestion


def format_value(variable: Variable, value: Scalar) -> str:
    """The value as exported to the environment. Raises ``InvalidValue``."""
    text = format_plain(value)
    reading = _READINGS.get(variable.type)
    return reading(variable, text, value) if reading else text


def check_exported(variable: Variable, text: str) -> None:
    """Check a value that the library gets as it is. Raises ``InvalidValue`` if it reads something else than is meant.

    Control variables of MPICH and MVAPICH stop MPI_Init; MVAPICH2 reads numbers and switches with ``atoi``.
    """
    meant = format_value(variable, text)
    read: str | None = meant
    if variable.type in ("bool", "int", "size", "enum") and is_control(variable):
        read = _read_control(variable, text, meant)
    elif variable.type in ("bool", "int"):
        number = _ATOI.match(text)
        read = str(int(number[1])) if number else "0"
    if read != meant:
        what = "stops MPI_Init" if read is None else f"is read as {read}"
        raise InvalidValue(f"`{clipped(text)}` {what}", meant, meant)


def is_control(variable: Variable) -> bool:
    """Return whether MPICH's parser of control variables reads it; MPI_Init fails at a value that it rejects."""
    return variable.name.startswith(_CVAR_PREFIXES)


def _read_control(variable: Variable, text: str, meant: str) -> str | None:
    """Return the value as MPICH's parser reads it; None if it is rejected."""
    if variable.type == "bool":
        return _CVAR_SWITCHES.get(text)
    if variable.type == "enum":
        return meant if text == meant else None
    number = _ATOI.fullmatch(text)
    return str(int(number[1])) if number else None


def format_plain(value: Scalar) -> str:
    """Any value as text: true is 1, false is 0. Raises ``InvalidValue`` if no environment variable can hold it."""
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if unfit := next((character for character in text if character in "\0\n\r"), None):
        word = {"\0": "a NUL character", "\n": "a line break", "\r": "a carriage return"}[unfit]
        raise InvalidValue(f"the value contains {word}", "a value on one line")
    if "\ufffd" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidValue("the value is not valid text", "a value in UTF-8")
    return text


def format_expectation(variable: Variable) -> str:
    """What a value must be, for messages."""
    low, high = variable.limits
    limits = "" if low is None else f", at least {low}" if high is None else f" from {low} to {high}"
    words = {
        "bool": "0 or 1",
        "int": f"a whole number{limits}",
        "size": f"a number of bytes, with K, M or G for powers of 1024{limits}",
        "float": "a number",
        "enum": one_of(variable.words),
        "range": "two port numbers, low:high",
        "text": one_of(variable.words) if variable.words else "text",
        "path": "a path",
        "internal": "nothing: the launcher sets it",
    }
    return words[variable.type]


def _switch(_: Variable, text: str, __: Scalar) -> str:
    folded = text.strip().casefold()
    if folded in _ON or folded in _OFF:
        return "1" if folded in _ON else "0"
    raise InvalidValue(_is_not(text, "a switch"), "0 or 1")


def _whole(variable: Variable, text: str, value: Scalar) -> str:
    folded = text.strip().casefold()
    if isinstance(value, bool | float) or not _WHOLE.fullmatch(folded):
        raise InvalidValue(_is_not(value, "a whole number"), format_expectation(variable))
    return _within(variable, int(folded, 16 if folded.startswith("0x") else 10))


def _size(variable: Variable, text: str, value: Scalar) -> str:
    match = _SIZE.fullmatch(text.strip().casefold())
    if isinstance(value, bool | float) or match is None:
        raise InvalidValue(_is_not(value, "a size"), format_expectation(variable))
    return _within(variable, int(match[1]) * _SUFFIXES[match[2]])


def _within(variable: Variable, number: int) -> str:
    low, high = variable.limits
    if low is None:
        low = 0 if variable.type == "size" else -_MAX - 1
    if number < low:
        raise InvalidValue(f"{number} is below {low}", format_expectation(variable))
    if high is not None and number > high:
        raise InvalidValue(f"{number} exceeds {high}", format_expectation(variable))
    if number > _MAX:
        raise InvalidValue(f"{number} exceeds {_MAX}, the library's largest number", f"at most {_MAX}")
    return str(number)


def _float(_: Variable, text: str, value: Scalar) -> str:
    if isinstance(value, bool) or not _FLOAT.fullmatch(text.strip()):
        raise InvalidValue(_is_not(value, "a number"), "a number")
    return text.strip()


def _word(variable: Variable, text: str, _: Scalar) -> str:
    folded = text.strip().casefold()
    for word in variable.words:
        if word.endswith("*"):
            if re.fullmatch(re.escape(word[:-1]) + "[a-z0-9_]+", folded):
                return folded
        elif folded == word.casefold():
            return word
    known = [word for word in variable.words if not word.endswith("*")]
    raise InvalidValue(_is_not(text, "a known word"), format_expectation(variable), nearest(text, known))


def _ports(_: Variable, text: str, __: Scalar) -> str:
    match = _PORTS.fullmatch(text.strip())
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not 0 <= low <= high <= 65535:
        raise InvalidValue(_is_not(text, "a range of ports"), "two port numbers, low:high")
    return f"{low}:{high}"


def _text(variable: Variable, text: str, value: Scalar) -> str:
    return _word(variable, text, value) if variable.words else text


def _path(_: Variable, text: str, __: Scalar) -> str:
    if not text.strip():
        raise InvalidValue("the path is empty", "a path")
    return text


def _internal(_: Variable, __: str, ___: Scalar) -> str:
    raise InvalidValue("the launcher sets it", "no value: remove the line")


def _is_not(value: Scalar, what: str) -> str:
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{clipped(shown)}` is not {what}"


_READINGS: Mapping[Type, Callable[[Variable, str, Scalar], str]] = {
    "bool": _switch,
    "int": _whole,
    "size": _size,
    "float": _float,
    "enum": _word,
    "range": _ports,
    "text": _text,
    "path": _path,
    "internal": _internal,
}


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
