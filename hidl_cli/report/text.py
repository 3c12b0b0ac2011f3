"""Format numbers, sizes and times for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone

MINUS = "\N{MINUS SIGN}"
_BINARY = ("", "Ki", "Mi", "Gi", "Ti")


def number(value: float) -> str:
    """Format a number with four significant digits, without an exponent if readable."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent <= 8:
        return f"{value:.3e}"
    text = f"{value:,.{max(0, 3 - exponent)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def listed(values: Sequence[float | str]) -> str:
    """Format several numbers or checksums. Checksums are truncated, and shown once if all are equal."""
    texts = [value[:16] if isinstance(value, str) else number(value) for value in values]
    return texts[0] if len(set(values)) == 1 and len(values) > 1 and isinstance(values[0], str) else "  ".join(texts)


def short(value: float) -> str:
    """Format a number for an axis: 250, 12,500, 1.5 M."""
    for power, letter in ((9, "G"), (6, "M"), (5, "k")):
        if abs(value) >= 10**power:
            return f"{number(value / 10 ** (power if power > 5 else 3))} {letter}"
    return number(value)


def percent(share: float, *, signed: bool = False) -> str:
    """Format a fraction as a percentage: 0.0512 is 5.1 %."""
    share = share if abs(share) >= 0.0005 else 0.0
    text = f"{share * 100:+.1f}" if signed and share else f"{share * 100:.1f}"
    return f"{text.replace('-', MINUS)} %"


def counted(number: int, unit: str) -> str:
    """Format a count with its unit: ``1 rank``, ``2 ranks``."""
    return f"{number:,} {unit.removesuffix('s') if number == 1 else unit}"


def level(confidence: float) -> str:
    """Format a confidence level: 0.95 is 95 %, 0.9833 is 98.3 %."""
    return f"{confidence * 100:.3g} %"


def size(count: int) -> str:
    """Format a message size in bytes with binary prefixes: 512, 8 Ki, 4 Mi."""
    power = 0
    while count and count % 1024 == 0 and power < len(_BINARY) - 1:
        count //= 1024
        power += 1
    return f"{count} {_BINARY[power]}".strip()


def when(created: str) -> datetime:
    """Parse an ISO 8601 time. A time without a time zone is in UTC.

    Raises:
        ValueError: If the time is invalid.
    """
    time = datetime.fromisoformat(created.replace("Z", "+00:00"))
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def day(created: str) -> str:
    """Return the date of an ISO 8601 time: ``2026-11-20``."""
    return created[:10]


def minute(created: str) -> str:
    """Format a time as ``2026-11-20 14:05 UTC``. An invalid time is returned unchanged."""
    try:
        return f"{when(created).astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return created


def duration(seconds: float | None) -> str:
    """Format a duration: ``42 s``, ``3 min 20 s``, ``2 h 5 min`` (empty for None)."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{number(round(seconds, 1))} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
