"""Numbers as programs print them: ``1,234.5``, ``1e-3``, ``1.0D+03``, ``1.2K``, ``98%``, ``0:01:23``."""

from __future__ import annotations

import re
from math import isfinite

from hidl_cli.plan.units import convert, is_time

_GROUPED = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?([eE][-+]?\d+)?")
_FORTRAN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[dD][-+]?\d+")
_SUFFIXED = re.compile(r"(.*[\d.])\s?(Ki|Mi|Gi|Ti|[kKMGT])")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]?\d)(?::([0-5]?\d(?:\.\d+)?))?")
_SUFFIXES = {
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
}
_LONGEST = 100


def read_number(text: bytes, unit: str) -> float:
    """Return the number that ``text`` shows; ``ValueError`` if it shows none, or one that is not finite.

    ``[[days-]hours:]minutes:seconds`` is a number of the time ``unit``.
    """
    if len(text) > _LONGEST:
        raise ValueError("not a number")
    try:
        number = float(text)
    except ValueError:
        number = _read(text.decode(errors="replace").strip(), unit)
    if not isfinite(number):
        raise ValueError("not a finite number")
    return number


def _read(text: str, unit: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    if _GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    if _FORTRAN.fullmatch(text):
        return float(text.lower().replace("d", "e"))
    if text.endswith("%"):
        return _read(text[:-1].rstrip(), unit)
    suffixed = _SUFFIXED.fullmatch(text)
    if suffixed:
        return _read(suffixed[1], unit) * _SUFFIXES[suffixed[2]]
    clock = _CLOCK.fullmatch(text)
    if clock and is_time(unit):
        return convert(_seconds(clock), "s", unit)
    raise ValueError("not a number")


def _seconds(clock: re.Match[str]) -> float:
    days, first, second, third = clock.groups()
    if third is None:
        return int(first) * 60 + int(second)
    return (int(days or 0) * 24 + int(first)) * 3600 + int(second) * 60 + float(third)
