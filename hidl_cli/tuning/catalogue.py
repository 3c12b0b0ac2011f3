"""The catalogue of MPI run-time variables: their types, values, and the families of MPI libraries that read them.

``recipes/tuning/variables.csv`` has one row for each variable and group of families that treat it alike. A name has
several rows if, for example, a control variable has different values or defaults in MPICH and MVAPICH, but there is
only one row per family. ``recipes/tuning/patterns.csv`` lists prefixes under which any name is valid. Both files are
read on first use.
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

_MAX = 2**31 - 1  # MVAPICH2 and MPICH store numbers and sizes in a C int
_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})
_SUFFIXES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_SIZE = re.compile(r"([+-]?[0-9]{1,20})([kmg]?)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}|0x[0-9a-f]{1,16}")
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
_PORTS = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")
_ATOI = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
#: Switches recognized by MPICH's control variable parser, which is case-sensitive.
_CVAR_SWITCHES = {
    **dict.fromkeys(("1", "yes", "YES", "true", "TRUE", "on", "ON"), "1"),
    **dict.fromkeys(("0", "no", "NO", "false", "FALSE", "off", "OFF"), "0"),
}
_CVAR_PREFIXES = ("MPIR_CVAR_", "MPICH_", "MPIR_PARAM_", "MVP_")


class InvalidValue(ValueError):
    """An invalid value, with the expected values and the most similar valid value."""

    def __init__(self, message: str, expected: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.suggestion = suggestion


def format_value(variable: Variable, value: Scalar) -> str:
    """Format a value for the environment. Raises ``InvalidValue`` if the variable does not accept it."""
    text = format_plain(value)
    reading = _READINGS.get(variable.type)
    return reading(variable, text, value) if reading else text


def check_exported(variable: Variable, text: str) -> None:
    """Raise ``InvalidValue`` if the library would read a value in the environment differently than intended.

    A malformed MPICH or MVAPICH control variable makes MPI_Init fail; MVAPICH2 reads numbers and switches with
    ``atoi``.
    """
    intended = format_value(variable, text)
    read: str | None = intended
    if variable.type in ("bool", "int", "size", "enum") and is_control(variable):
        read = _read_control(variable, text, intended)
    elif variable.type in ("bool", "int"):
        number = _ATOI.match(text)
        read = str(int(number[1])) if number else "0"
    if read != intended:
        what = "stops MPI_Init" if read is None else f"is read as {read}"
        raise InvalidValue(f"`{clipped(text)}` {what}", intended, intended)


def is_control(variable: Variable) -> bool:
    """Return whether MPICH's control variable parser reads the variable.

    In that case, MPI_Init fails if the value is invalid.
    """
    return variable.name.startswith(_CVAR_PREFIXES)


def _read_control(variable: Variable, text: str, intended: str) -> str | None:
    """Return the value, as interpreted by MPICH's parser, or None if the parser rejects it."""
    if variable.type == "bool":
        return _CVAR_SWITCHES.get(text)
    if variable.type == "enum":
        return intended if text == intended else None
    number = _ATOI.fullmatch(text)
    return str(int(number[1])) if number else None


def format_plain(value: Scalar) -> str:
    """Format any value as text (true as 1, false as 0).

    Raises ``InvalidValue`` if no environment variable can contain it.
    """
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if unfit := next((character for character in text if character in "\0\n\r"), None):
        word = {"\0": "a NUL character", "\n": "a line break", "\r": "a carriage return"}[unfit]
        raise InvalidValue(f"the value contains {word}", "a value on one line")
    if "\ufffd" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidValue("the value is not valid text", "a value in UTF-8")
    return text


def format_expectation(variable: Variable) -> str:
    """Describe the valid values for use in messages."""
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
        "internal": "nothing; set by the launcher",
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
        raise InvalidValue(f"{number} exceeds {_MAX}, the library's maximum", f"at most {_MAX}")
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
    raise InvalidValue("the launcher sets this variable", "no value; remove the line")


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
_WITHOUT_PREFIX = 0.9  # similarity required of names without a known prefix, because other programs use similar names
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
T = TypeVar("T")


@dataclass(frozen=True)
class Reader:
    """An MPI family that reads a variable, and the library versions that do so.

    Attributes:
        relation: ``>=``, or ``>`` if ``since`` is the last version known not to read the variable.
        since: First version that reads the variable; empty if unknown.
        until: First version that no longer reads the variable; empty if unknown.
    """

    family: Family
    relation: str = ""
    since: str = ""
    until: str = ""

    def includes(self, version: str | None) -> bool:
        """Return whether this version reads the variable, or True if the version is unknown."""
        own = numbers(version)
        if not own:
            return True
        begun = not self.since or own > numbers(self.since) or (self.relation == ">=" and own == numbers(self.since))
        return begun and (not self.until or own < numbers(self.until))

    @property
    def versions(self) -> str:
        """The versions, as written in the table; for example, ``>=2.3.6``."""
        ended = f"<{self.until}" if self.until else ""
        return f"{self.relation}{self.since}{',' if self.since and ended else ''}{ended}"

    def __str__(self) -> str:
        since = {"": "", ">=": f" since {self.since}", ">": f" after {self.since}"}[self.relation]
        return self.family + since + (f" before {self.until}" if self.until else "")


@dataclass(frozen=True)
class Variable:
    """A run-time variable, as a group of MPI families interprets it.

    Attributes:
        values: Valid words for an enumeration (``a|b``; ``osu_*`` for any word with this prefix) or for
            case-insensitive text, or a number's limits (``low..high``, either of which may be omitted).
        default: The default value, which is empty if it is unknown or depends on the machine.
        also: Other names of the variable.
        meaning_from: Source of ``meaning``. The source is ``name`` if the meaning only spells out the variable's name.
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
        """All names of the variable, starting with the main name."""
        return (self.name, *self.also)

    @property
    def words(self) -> tuple[str, ...]:
        """The valid words of an enumeration or text variable; empty for other types."""
        return tuple(self.values.split("|")) if self.values and self.type in ("enum", "text") else ()

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """A number's lower and upper limits, each of which is None if unlimited."""
        low, separator, high = self.values.partition("..")
        return (int(low) if low else None, int(high) if high else None) if separator else (None, None)

    def reader(self, family: Family) -> Reader | None:
        """Return the reader for a family, or None if the family does not read the variable."""
        return next((reader for reader in self.readers if reader.family == family), None)


@dataclass(frozen=True)
class VariablePattern:
    """A prefix under which any name is valid, with any value."""

    prefix: str
    families: tuple[Family, ...]
    meaning: str
    provenance: str


def variables(name: str) -> tuple[Variable, ...]:
    """Return all rows for a variable, given any of its names, or no rows if it is unknown."""
    return _by_name().get(name, ())


def names_of(name: str) -> frozenset[str]:
    """Return all names of a variable, including the given one."""
    return frozenset((name, *(other for known in variables(name) for other in known.names)))


def variable(name: str, family: Family) -> Variable | None:
    """Return a family's row for a variable, or None if no version of the family reads the variable."""
    return next((known for known in variables(name) if known.reader(family)), None)


def main_name(name: str, family: Family) -> str:
    """Return the main name of a variable that the family reads. Unknown names are returned unchanged."""
    known = variable(name, family)
    return known.name if known else name


def pattern(name: str, family: Family | None = None) -> VariablePattern | None:
    """Return the pattern with the longest prefix that matches a name, or None if there is none.

    If ``family`` is given, only patterns of variables that the family reads are considered.
    """
    matching = [known for known in patterns() if name.startswith(known.prefix) and len(name) > len(known.prefix)]
    if family is not None:
        matching = [known for known in matching if family in known.families]
    return max(matching, key=lambda known: len(known.prefix), default=None)


def all_variables() -> tuple[Variable, ...]:
    """Return the whole catalogue, sorted by name."""
    return _rows()


def all_names() -> Iterable[str]:
    """Return all names of all variables."""
    return _by_name().keys()


def namesakes(name: str) -> tuple[str, ...]:
    """Return the known names that differ from this name only in the prefix. This name may have no prefix."""
    folded = clipped(name).upper()
    rest = folded.removeprefix(next((prefix for prefix in _PREFIXES if folded.startswith(prefix)), ""))
    return tuple(prefix + rest for prefix in _PREFIXES if prefix + rest != name and prefix + rest in _by_name())


def nearest_name(name: str, family: Family | None = None, *, likeness: float = 0.75) -> str | None:
    """Return the known name that ``name`` most likely misspells, or None.

    Args:
        name: The name to look up; the part after the prefix is compared.
        family: Restrict the search to names that this family reads.
        likeness: Required similarity, between 0 and 1.
    """
    prefix = next((known for known in _PREFIXES if name.upper().startswith(known)), "")
    known_names = all_names() if family is None else (known for known in all_names() if variable(known, family))
    rest = {known.removeprefix(prefix): known for known in known_names if known.startswith(prefix)}
    least = likeness if prefix else max(likeness, _WITHOUT_PREFIX)
    near = difflib.get_close_matches(clipped(name).upper().removeprefix(prefix), rest, n=1, cutoff=least)
    return rest[near[0]] if near else _by_prefix(name)


def numbers(version: str | None) -> tuple[int, ...]:
    """Return a version's leading numbers without trailing zeros: (2, 3, 7) for ``2.3.7-1``.

    The result is empty if the version is unknown.
    """
    match = _NUMBERS.match(version or "")
    found = [int(part) for part in match[0].split(".")] if match else []
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)


@cache
def patterns() -> tuple[VariablePattern, ...]:
    """Return the prefixes under which any name is valid."""
    return tuple(
        VariablePattern(
            row["prefix"],
            FAMILIES if row["families"] == "*" else tuple(_family(word) for word in row["families"].split(";")),
            row["meaning"],
            row["provenance"],
        )
        for row in rows_of("patterns")
    )


def rows_of(table: str) -> list[dict[str, str]]:
    """Return the rows of ``recipes/tuning/<table>.csv``."""
    with (paths.shipped() / "recipes" / "tuning" / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _by_prefix(name: str) -> str | None:
    """Return the name with its prefix in capitals if this makes it match a pattern, and None otherwise.

    A name in lower case is capitalized as a whole.
    """
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
    """Return ``word`` or, if ``word`` is only a prefix, ``name`` with its own prefix replaced by ``word``."""
    if word not in _PREFIXES:
        return word
    own = next(prefix for prefix in _PREFIXES if name.startswith(prefix))
    return word + name.removeprefix(own)


def _reader(word: str) -> Reader:
    match = _READER.fullmatch(word)
    if match is None:
        raise ValueError(
            f"invalid reader {word!r}: expected FAMILY, optionally followed by >=VERSION or >VERSION, and by <VERSION"
        )
    return Reader(_family(match[1]), match[2] or "", match[3] or "", match[4] or "")


def _family(word: str) -> Family:
    return _one_of(FAMILIES, word)


def _one_of(words: tuple[T, ...], word: str) -> T:
    for known in words:
        if known == word:
            return known
    raise ValueError(f"invalid {word!r}: must be one of {words}")
