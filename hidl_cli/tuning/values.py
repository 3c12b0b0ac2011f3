"""Values of variables: checked against the variable's type and range, and formatted for the environment.

The libraries differ, as tried: MPICH 5.0.2 aborts on a number with a suffix, on a hexadecimal number and on an
enumeration word in capitals, wraps numbers beyond 32 bits, and accepts 0 and 1 (and some words) for a switch. MVAPICH2
reads a switch with ``atoi``: ``yes`` means no. hidl checks values itself, and exports the one form that all accept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hidl_cli.inputs.faults import nearest, one_of
from hidl_cli.inputs.fields import Scalar
from hidl_cli.inputs.problems import clipped
from hidl_cli.tuning.catalogue import Type, Variable

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
