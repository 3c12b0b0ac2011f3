"""Elements of SVG whose text is always escaped, and scales from values to places on a drawing.

The drawings are the report's own: as inline SVG they follow the page's colours (light, dark, print), are read out by
screen readers and take a few kilobytes each. Matplotlib's SVG has fixed colours and its text as outlines, and plotly
would put 4 MB of script into every page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from markupsafe import Markup, escape

from hidl_cli.inputs.problems import visible


def element(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """One element; ``class_`` is the attribute class, underscores become hyphens, None leaves an attribute out."""
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _text(value))
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(escape(child) if isinstance(child, Markup) else _text(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, inside)


def _text(value: object) -> Markup:
    """The value as text: whole numbers short, control characters visible, what is markup escaped."""
    if isinstance(value, float):
        return Markup(f"{value:.1f}".removesuffix(".0"))
    return escape(visible(str(value)))


@dataclass(frozen=True)
class Scale:
    """Puts values between ``low`` and ``high`` onto places between ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of ``value``."""
        low, high, here = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        share = (here - low) / (high - low) if high != low else 0.5
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True)
class Tick:
    """A labelled place of an axis."""

    value: float
    label: str


def linear_ticks(low: float, high: float, label: Callable[[float], str], most: int = 6) -> list[Tick]:
    """Round values from ``low`` to ``high``, a step of 1, 2 or 5 times a power of ten apart."""
    if high <= low:
        return [Tick(low, label(low))]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [Tick(i * step, label(round(i * step, 12))) for i in range(first, last + 1)]


def log_ticks(low: float, high: float, label: Callable[[float], str], most: int = 7) -> list[Tick]:
    """Powers of ten between ``low`` and ``high``, with twice and five times them where there are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [f * 10.0**e for e in exponents for f in factors if low * 0.999 <= f * 10.0**e <= high * 1.001]
        if len(values) <= most:
            break
    return [Tick(value, label(value)) for value in _thinned(values, most)]


def doubling_ticks(values: Sequence[int], label: Callable[[int], str], most: int = 7) -> list[Tick]:
    """Those of ``values`` that are far enough apart on a logarithmic axis, the last one among them."""
    if not values:
        return []
    chosen: list[int] = []
    gap = (math.log(values[-1]) - math.log(values[0])) / most
    for value in reversed(values):
        if not chosen or math.log(chosen[-1]) - math.log(value) >= gap * 0.999:
            chosen.append(value)
    return [Tick(float(value), label(value)) for value in reversed(chosen)]


def _thinned(values: list[float], most: int) -> list[float]:
    every = -(-len(values) // most) if values else 1
    return values[::every]


def time_ticks(low: float, high: float, most: int = 5) -> list[Tick]:
    """Days (hours, where all is within two days) between two times in seconds since the epoch, in UTC."""
    hours = (high - low) / 3600
    if hours <= 48:
        step = next((h for h in (1, 2, 3, 6, 12, 24) if hours / h <= most), 24) * 3600
        form = "%d %b %H:%M"
    else:
        days = next((d for d in (1, 2, 7, 14, 28, 56, 91, 182, 365) if hours / 24 / d <= most), 730)
        step, form = days * 86400, "%d %b %Y" if hours > 24 * 300 else "%d %b"
    first = datetime.fromtimestamp(low, timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    ticks = []
    time = first
    while time.timestamp() <= high:
        if time.timestamp() >= low:
            ticks.append(Tick(time.timestamp(), f"{time:{form}}"))
        time += timedelta(seconds=step)
    return ticks or [Tick(low, f"{datetime.fromtimestamp(low, timezone.utc):%d %b %H:%M}")]
