"""Convert numbers between the units that programs print, such as ``Gflops`` to ``Tflop/s`` or ``s/it`` to ``it/s``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

_SECONDS = {
    1e-9: ("ns", "nsec", "nanosecond", "nanoseconds"),
    1e-6: ("us", "µs", "μs", "usec", "microsecond", "microseconds"),
    1e-3: ("ms", "msec", "millisecond", "milliseconds"),
    1.0: ("s", "sec", "secs", "second", "seconds"),
    60.0: ("min", "mins", "minute", "minutes"),
    3600.0: ("h", "hr", "hrs", "hour", "hours"),
    86400.0: ("d", "day", "days"),
}
_TIMES = {word: seconds for seconds, words in _SECONDS.items() for word in words}
_PREFIXES = {
    "": 1.0,
    **{prefix: 1e3**power for prefix, power in zip("kKMGTPE", (1, 1, 2, 3, 4, 5, 6), strict=True)},
    **{f"{prefix}i": 1024.0**power for power, prefix in enumerate("KMGTPE", start=1)},
}
#: Spellings of units, mapped to their canonical names; all other names are canonical.
_ALIASES = {
    alias: name
    for name, aliases in {
        "B": ("byte", "bytes", "Byte", "Bytes"),
        "b": ("bit", "bits"),
        "image": ("images", "img", "imgs"),
        "token": ("tokens", "tok"),
        "sample": ("samples",),
        "step": ("steps",),
        "timestep": ("timesteps",),
        "message": ("messages", "msg", "msgs"),
        "iteration": ("iterations", "iter", "iters", "it"),
        "flop": ("flops", "Flop", "Flops", "FLOP", "FLOPS"),
    }.items()
    for alias in aliases
}
_FLOPS = re.compile(r"([kKMGTPE]?)(flops|flop/s(ec)?)", re.IGNORECASE)


def convert(value: float, printed: str, wanted: str) -> float:
    """Convert a value from unit ``printed`` to ``wanted``; raises ``ValueError`` for units of different quantities."""
    factor, inverse = _conversion(printed, wanted)
    return factor / value if inverse else value * factor


def is_reciprocal(printed: str, wanted: str) -> bool:
    """Return whether ``convert`` inverts the value, as from ``s/step`` to ``step/s``."""
    return _conversion(printed, wanted)[1]


def is_time(unit: str) -> bool:
    """Return whether the unit is a time, such as ``ms``."""
    return unit.strip() in _TIMES


def better_of(unit: str) -> Literal["higher", "lower"] | None:
    """Return which values of a unit are better: lower ones for times (s, ms/step), higher ones for rates (images/s)."""
    above, *below = _terms(unit)
    if not below:
        return "lower" if above in _TIMES else None
    if above in _TIMES:
        return "lower" if _TIMES[above] > _TIMES.get(below[0], 0) else "higher"
    return "higher" if below[0] in _TIMES else None


@lru_cache(maxsize=256)
def _conversion(printed: str, wanted: str) -> tuple[float, bool]:
    """Return the conversion factor, and whether the value must be inverted."""
    if printed.strip() == wanted.strip():
        return 1.0, False
    have, want = _terms(printed), _terms(wanted)
    direct, inverse = _factor(have, want), _factor(have[::-1], want)
    if direct is not None and not _is_inverse_time_ratio(have, want):
        return direct, False
    if inverse is not None and len(have) == 2:
        return inverse, True
    raise ValueError(f"unit {printed!r} cannot be converted to {wanted!r}")


def _is_inverse_time_ratio(have: list[str], want: list[str]) -> bool:
    """Return whether one unit is simulated time per elapsed time (ns/day) and the other the inverse (hours/ns)."""
    if len(have) != 2 or not all(term in _TIMES for term in (*have, *want)):
        return False
    return (_TIMES[have[0]] > _TIMES[have[1]]) != (_TIMES[want[0]] > _TIMES[want[1]])


def _terms(unit: str) -> list[str]:
    """Split a unit into numerator and denominator: ``MB/s`` into ``["MB", "s"]``."""
    plain = re.sub(r"\s+per\s+", "/", unit.strip())
    flops = _FLOPS.fullmatch(plain)
    if flops:
        plain = f"{flops[1]}flop/s"
    return [term.strip() for term in plain.split("/")]


def _factor(have: list[str], want: list[str]) -> float | None:
    if len(have) != len(want):
        return None
    factor = 1.0
    for index, (one, other) in enumerate(zip(have, want, strict=True)):
        scale = _scale(one, other)
        if scale is None:
            return None
        factor = factor / scale if index else factor * scale
    return factor


def _scale(one: str, other: str) -> float | None:
    """Return the factor that converts ``one`` to ``other``, or None if they measure different quantities."""
    known = dict(_readings(other))
    return next((scale / known[base] for base, scale in _readings(one) if base in known), None)


def _readings(term: str) -> Iterator[tuple[str, float]]:
    """Yield each possible base unit of a term, with its factor."""
    if term in _TIMES:
        yield "s", _TIMES[term]
        return
    for prefix, scale in _PREFIXES.items():
        name = term.removeprefix(prefix)
        if term.startswith(prefix) and name:
            base = _ALIASES.get(name, name)
            yield ("b", 8 * scale) if base == "B" else (base, scale)
