"""Render the report page as HTML with inline SVG charts.

Inline SVG adapts to the colour scheme of the page (light, dark, print), is accessible to screen readers, and requires
only a few kilobytes per chart. In contrast, Matplotlib's SVG has fixed colours and renders text as outlines, and Plotly
would add 4 MB of JavaScript to every page.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from markupsafe import Markup, escape

from hidl_cli import paths
from hidl_cli.analysis.scaling import StepResult, Study
from hidl_cli.inputs.problems import visible
from hidl_cli.report import text
from hidl_cli.report.model import Curve, CurveComparison, Line, Outcome, Page, ReportedProfile, ReportedWaterfall, Trend
from hidl_cli.report.text import counted, day, minute, number, percent, short, size, when
from hidl_cli.templates import render_page


@dataclass(frozen=True)
class AxisScale:
    """A mapping from values between ``low`` and ``high`` to positions between ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        low, high, scaled = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        fraction = (scaled - low) / (high - low) if high != low else 0.5
        return self.start + fraction * (self.end - self.start)


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis."""

    value: float
    label: str


def linear_ticks(low: float, high: float, label: Callable[[float], str], most: int = 6) -> list[Tick]:
    """Return ticks at round values whose spacing is 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [Tick(low, label(low))]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [Tick(i * step, label(round(i * step, 12))) for i in range(first, last + 1)]


def log_ticks(low: float, high: float, label: Callable[[float], str], most: int = 7) -> list[Tick]:
    """Return ticks at powers of ten, and also at 2, 3 or 5 times these if there are only a few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [f * 10.0**e for e in exponents for f in factors if low * 0.999 <= f * 10.0**e <= high * 1.001]
        if len(values) <= most:
            break
    return [Tick(value, label(value)) for value in _thinned(values, most)]


def doubling_ticks(values: Sequence[int], label: Callable[[int], str], most: int = 7) -> list[Tick]:
    """Return ticks at the last value and at others that are sufficiently far apart on a logarithmic axis."""
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
    """Return ticks at days, or at hours for up to two days; times are seconds since the epoch, and labels use UTC."""
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


# The charts: scaling, history and curves by message size.


WIDEST_LINEAR = 12  # as a multiple of the baseline; on a wider linear axis, small steps would be crowded together
MOST_WIDE = 60  # number of marks of normal size; more would overlap
_MARGIN = 0.06  # free space above and below the values, as a fraction of their range


def speedup(study: Study) -> Markup:
    """Draw each step's speed-up with its interval and the ideal line, on logarithmic axes if the range is wide."""
    steps, wide = study.steps, _is_wide(study)
    highest = max(s.ideal_speedup * max(1.0, s.interval.high if s.interval else s.efficiency) for s in steps)
    lowest = min(step.speedup for step in steps)
    y = upwards(min(1.0, lowest) * 0.9, highest * 1.1, logarithmic=True) if wide else upwards(0, highest * 1.05)
    ticks = log_ticks(y.low, y.high, short) if wide else linear_ticks(0, y.high, short)
    label = f"speed-up over {counted(study.baseline.n, study.step_unit)}"
    frame = Frame(_step_scale(study), y, _step_ticks(study), ticks, study.step_unit, label)
    ideal = line([(frame.x(step.n), y(step.ideal_speedup)) for step in steps], "ideal")
    measured = line([(frame.x(step.n), y(step.speedup)) for step in steps], "measured")
    points = [_step_point(frame, step, step.speedup, step.ideal_speedup, describe_step(step, study)) for step in steps]
    return frame.draw(f"Speed-up by {study.step_unit}. {_format_verdict(study)}", ideal, measured, *points)


def efficiency(study: Study) -> Markup:
    """Draw each step's efficiency with its interval, the target and the ideal."""
    steps = study.steps
    lows = [step.interval.low if step.interval else step.efficiency for step in steps]
    highs = [step.interval.high if step.interval else step.efficiency for step in steps]
    low, high = _with_room([*lows, *highs, study.target, 1.0])
    y = upwards(max(0.0, low), high)
    frame = Frame(
        _step_scale(study),
        y,
        _step_ticks(study),
        linear_ticks(y.low, y.high, short, 5),
        study.step_unit,
        "efficiency",
    )
    measured = line([(frame.x(step.n), y(step.efficiency)) for step in steps], "measured")
    points = [_step_point(frame, step, step.efficiency, 1.0, describe_step(step, study)) for step in steps]
    lines = [level(frame, 1.0, "ideal"), level(frame, study.target, "target")]
    return frame.draw(f"Efficiency by {study.step_unit}. {_format_verdict(study)}", *lines, measured, *points)


def describe_step(step: StepResult, study: Study) -> str:
    """Describe the result of a step."""
    mean = f"{counted(step.n, study.step_unit)}: {number(step.mean)} {study.unit}"
    text = f"{mean}, speed-up {number(step.speedup)}, efficiency {step.efficiency:.3f}"
    return f"{text} ({step.interval.low:.3f} to {step.interval.high:.3f})" if step.interval else text


def _format_verdict(study: Study) -> str:
    return f"{'; '.join(describe_step(step, study) for step in study.steps)}. Target {number(study.target)}."


def _is_wide(study: Study) -> bool:
    return study.steps[-1].ideal_speedup > WIDEST_LINEAR


def _step_scale(study: Study) -> AxisScale:
    return across(study.steps[0].n, study.steps[-1].n, logarithmic=_is_wide(study), inset=14)


def _step_ticks(study: Study) -> list[Tick]:
    ns = [step.n for step in study.steps]
    if _is_wide(study):
        return doubling_ticks(ns, lambda n: f"{n:,}")
    kept: list[int] = []
    for n in reversed(ns):
        if not kept or kept[-1] - n > 0.07 * (ns[-1] - ns[0]):
            kept.append(n)
    return [Tick(float(n), f"{n:,}") for n in kept]


def _step_point(frame: Frame, step: StepResult, value: float, whole: float, text: str) -> Markup:
    interval = step.interval
    bar = (frame.y(max(interval.low * whole, frame.y.low)), frame.y(interval.high * whole)) if interval else None
    return point(frame.x(step.n), frame.y(value), text, "measured", bar=bar)


def history(trend: Trend) -> Markup:
    """Draw a metric over time with each run's range, the target, and the levels between change points."""
    times = [when(p.created).timestamp() for p in trend.points]
    values = [v for p in trend.points for v in (p.low, p.value, p.high) if v is not None]
    low, high = _with_room(values if trend.target is None else [*values, trend.target])
    y = upwards(low if min(values) < 0 else max(0.0, low), high)
    x = across(times[0], times[-1], inset=8)
    frame = Frame(x, y, time_ticks(times[0], times[-1], 4), linear_ticks(y.low, y.high, short, 5), "date", trend.unit)
    content = [level(frame, trend.target, "target")] if trend.target is not None else []
    content += _changes(frame, trend, times)
    if len(times) > 1:
        content.append(line([(x(t), y(p.value)) for t, p in zip(times, trend.points, strict=True)], "trail"))
    for time, p in zip(times, trend.points, strict=True):
        text = f"{minute(p.created)}: {number(p.value)} {trend.unit}"
        bar = None if p.low is None or p.high is None else (y(p.low), y(p.high))
        css = f"measured is-{p.outcome.value}"
        content.append(point(x(time), y(p.value), text, css, bar=bar, dense=len(times) > MOST_WIDE))
    return frame.draw(_describe_trend(trend), *content)


def _changes(frame: Frame, trend: Trend, times: Sequence[float]) -> list[Markup]:
    """Draw a vertical line at each change, and the levels before and after it."""
    marks = []
    starts = {p.run: time for p, time in zip(trend.points, times, strict=True)}
    borders = [starts[change.run] for change in trend.changes if change.run in starts]
    for change, time in zip([c for c in trend.changes if c.run in starts], borders, strict=True):
        earlier = max((t for t in times if t < time), default=time)
        x = frame.x((earlier + time) / 2)
        start = max((b for b in borders if b < time), default=times[0])
        stop = min((b for b in borders if b > time), default=times[-1])
        marks.append(line([(frame.x(start), frame.y(change.before)), (x, frame.y(change.before))], "level"))
        marks.append(line([(x, frame.y(change.after)), (frame.x(stop), frame.y(change.after))], "level"))
        title = f"{day(change.created)}: {percent(change.relative, signed=True)}"
        vertical = element("line", element("title", title), x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM)
        marks.append(element("g", vertical, class_="change"))
    return marks


def _describe_trend(trend: Trend) -> str:
    """Describe a trend for screen readers."""
    first, last = trend.points[0], trend.points[-1]
    text = (
        f"{trend.metric} of {trend.name} over {len(trend.points)} runs, from {number(first.value)} {trend.unit} on "
        f"{day(first.created)} to {number(last.value)} {trend.unit} on {day(last.created)}."
    )
    for change in trend.changes:
        text += f" On {day(change.created)} it changed by {percent(change.relative, signed=True)}."
    return text if trend.changes else f"{text} No change point."


def curve(shown: Curve) -> Markup:
    """Draw a metric by message size on logarithmic axes, including the baseline if there is one."""
    lines = [line_ for line_ in (shown.baseline, shown.line) if line_ is not None]
    points = [p for line_ in lines for p in line_.points if p[0] > 0 and p[1] > 0]
    sizes = sorted({p[0] for p in points})
    values = [p[1] for p in points]
    y = upwards(min(values) / 1.15, max(values) * 1.15, logarithmic=True)
    x = across(sizes[0], sizes[-1], logarithmic=True, inset=8)
    ticks = log_ticks(y.low, y.high, short)
    frame = Frame(x, y, doubling_ticks(sizes, size), ticks, "message size, bytes", shown.unit)
    content = []
    for line_, css, prefix in ((shown.baseline, "baseline square", "baseline, "), (shown.line, "measured", "")):
        if line_ is not None:
            content += _curve_line(frame, line_, css, shown.unit, prefix=prefix)
    first, last = shown.line.points[0], shown.line.points[-1]
    title = (
        f"{shown.metric} of {shown.name} by message size: {number(first[1])} {shown.unit} at {size(first[0])} bytes, "
        f"{number(last[1])} {shown.unit} at {size(last[0])} bytes."
    )
    return frame.draw(title, *content)


def comparison(shown: CurveComparison) -> Markup:
    """Draw several curves on the same logarithmic axes."""
    points = [p for _, line_ in shown.lines for p in line_.points if p[0] > 0 and p[1] > 0]
    sizes = sorted({p[0] for p in points})
    values = [p[1] for p in points]
    y = upwards(min(values) / 1.15, max(values) * 1.15, logarithmic=True)
    x = across(sizes[0], sizes[-1], logarithmic=True, inset=8)
    ticks = log_ticks(y.low, y.high, short)
    frame = Frame(x, y, doubling_ticks(sizes, size), ticks, "message size, bytes", shown.unit)
    content = []
    for index, (name, line_) in enumerate(shown.lines, start=1):
        content += _curve_line(frame, line_, f"line-{index}", shown.unit, prefix=f"{name}, ")
    names = ", ".join(name for name, _ in shown.lines)
    return frame.draw(f"{shown.metric} of {shown.name} by message size: {names}.", *content)


def _curve_line(frame: Frame, line_: Line, css: str, unit: str, *, prefix: str = "") -> list[Markup]:
    drawn = [(size_, value) for size_, value in line_.points if size_ > 0 and value > 0]
    return [
        line([(frame.x(s), frame.y(v)) for s, v in drawn], css),
        *(point(frame.x(s), frame.y(v), f"{prefix}{size(s)} bytes: {number(v)} {unit}", css) for s, v in drawn),
    ]


def _with_room(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = (high - low) * _MARGIN or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


# The frame of a chart: axes with labels and a grid, and the marks that all charts share.


#: Phones scale the chart by about 0.8 and desktops by 1.3, so that labels are readable on both.
WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 12, 40
_LETTER = 6.4  # approximate width of a letter in the labels


@dataclass(frozen=True)
class Frame:
    """The axes of a chart with their scales, ticks and labels."""

    x: AxisScale
    y: AxisScale
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    x_label: str
    y_label: str

    def draw(self, title: str, *content: Markup) -> Markup:
        """Return the chart with ``content`` between grid and labels; ``title`` is a description for screen readers."""
        return element(
            "svg",
            self._grid(),
            *content,
            self._labels(),
            class_="chart",
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
            width=WIDTH,
            height=HEIGHT,
            role="img",
            aria_label=title,
            focusable="true",
            tabindex="0",
        )

    def _grid(self) -> Markup:
        lines = [
            element("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=self.y(t.value), y2=self.y(t.value))
            for t in self.y_ticks
        ]
        base = HEIGHT - BOTTOM
        lines.append(element("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base))
        lines += [
            element("line", class_="axis", x1=self.x(t.value), x2=self.x(t.value), y1=base, y2=base + 4)
            for t in self.x_ticks
        ]
        return element("g", *lines, aria_hidden="true")

    def _labels(self) -> Markup:
        base = HEIGHT - BOTTOM
        labels = [element("text", t.label, x=LEFT - 6, y=self.y(t.value) + 4, text_anchor="end") for t in self.y_ticks]
        labels += [
            element("text", t.label, x=self._within(self.x(t.value), t.label), y=base + 17, text_anchor="middle")
            for t in self.x_ticks
        ]
        labels.append(element("text", self.x_label, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 5, class_="label"))
        middle = (TOP + base) / 2
        rotation = f"rotate(-90 11 {middle:.0f})"
        labels.append(element("text", self.y_label, x=11, y=middle, class_="label", transform=rotation))
        return element("g", *labels, aria_hidden="true")

    @staticmethod
    def _within(x: float, label: str) -> float:
        """Move the centre of a label to the left if the label would exceed the right edge of the chart."""
        return min(x, WIDTH - 2 - len(label) * _LETTER / 2)


def across(low: float, high: float, *, logarithmic: bool = False, inset: float = 0.0) -> AxisScale:
    """Return the scale of the horizontal axis, with marks kept ``inset`` away from its ends."""
    return AxisScale(low, high, LEFT + inset, WIDTH - RIGHT - inset, logarithmic)


def upwards(low: float, high: float, *, logarithmic: bool = False) -> AxisScale:
    """Return the scale of the vertical axis."""
    return AxisScale(low, high, HEIGHT - BOTTOM, TOP, logarithmic)


def line(points: Sequence[tuple[float, float]], css: str) -> Markup:
    """Draw straight lines between points."""
    return element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=css)


def level(frame: Frame, value: float, css: str) -> Markup:
    """Draw a horizontal line across the whole width."""
    return line([(LEFT, frame.y(value)), (WIDTH - RIGHT, frame.y(value))], css)


def point(
    x: float, y: float, title: str, css: str, *, bar: tuple[float, float] | None = None, dense: bool = False
) -> Markup:
    """Draw a mark with a tooltip.

    Args:
        x: Horizontal position.
        y: Vertical position.
        title: Text of the tooltip.
        css: CSS classes.
        bar: Vertical positions of the ends of the mark's interval.
        dense: Whether to draw a small mark, for charts with many marks.
    """
    parts = [element("title", title)]
    if bar is not None:
        low, high = bar
        ends = "" if dense else f"M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
        parts.append(element("path", d=f"M{x:.1f} {low:.1f}V{high:.1f}{ends}", class_="bar"))
    if "square" in css:
        parts.append(element("rect", x=x - 3.5, y=y - 3.5, width=7, height=7))
    else:
        parts.append(element("circle", cx=x, cy=y, r=2.5 if dense else 4))
    return element("g", *parts, class_=f"pt {css}")


# The page.


_CLASSES = 3  # number of shades each for better and worse values in heat maps
_HEAD = 4096  # number of bytes that contain the head up to the style
_STEP = 0.03  # width of a shade, so that noise of ±1 % has no colour


def is_report(file: Path) -> bool:
    """Return whether a file is a page that ``to_html`` has rendered."""
    with file.open("rb") as content:
        head = content.read(_HEAD).lstrip().partition(b"<style>")[0]
    marks = (b'<meta name="generator" content="hidl">', b"<title>hidl report: ")  # the second one is that of hidl 0.1
    return head.startswith(b"<!doctype html>") and any(mark in head for mark in marks)


def to_html(page: Page) -> str:
    """Render the page as a single document with inline style, script and charts, and a policy that forbids requests."""
    style, script = _shipped("style.css"), _shipped("script.js")
    return render_page(
        "report/page.html.j2",
        {
            "page": page,
            "style": style,
            "script": script,
            "policy": _policy(style, script),
            "charts": {
                each.__name__: each
                for each in (speedup, efficiency, history, curve, comparison, rank_strip, traffic_map, waterfall_chart)
            },
            "text": text,
            "Outcome": Outcome,
            "shade": shade,
            "ratios": ratios,
            "side_by_side": side_by_side,
            "on_page": {run.id for run in page.runs},
            "newest": {standing.newest.run for standing in page.standings},
        },
    )


def shade(deviation: float) -> str:
    """Return the CSS class of a heat map cell: ``worse-3`` ... ``even`` ... ``better-3``."""
    degree = min(_CLASSES, int((abs(deviation) + _STEP / 2) / _STEP))
    return f"{'worse' if deviation < 0 else 'better'}-{degree}" if degree else "even"


def ratios(curve: Curve) -> list[tuple[int, float, float | None, float | None]]:
    """Return the rows of a curve's table: size, value, the baseline's value, and ratio."""
    before = dict(curve.baseline.points) if curve.baseline else {}
    return [
        (length, value, before.get(length), value / before[length] if before.get(length) else None)
        for length, value in curve.line.points
    ]


def side_by_side(comparison: CurveComparison) -> list[tuple[int, list[float | None], list[float | None]]]:
    """Return the rows of a comparison's table: size, the value of each run, and the differences from the first run."""
    lines = [dict(line.points) for _, line in comparison.lines]
    rows = []
    for length in sorted({length for line in lines for length in line}):
        first, *others = values = [line.get(length) for line in lines]
        differences = [None if first is None or other is None else other - first for other in others]
        rows.append((length, values, differences))
    return rows


def _policy(style: str, script: str) -> str:
    """Return a content security policy that allows only this style and this script, and no requests."""
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src {_digest(style)}",
            f"script-src {_digest(script)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _shipped(name: str) -> Markup:
    """Return a shipped file without escaping it, which is safe because it contains no run data."""
    return Markup((paths.shipped() / "templates" / "report" / name).read_text(encoding="utf-8"))


_WIDTH = 640
_LABEL = 90  # width of the rank names
_CAUSE = 265  # width of the causes of lost efficiency
_ROW = 16


def element(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """Return an element with escaped text.

    In attribute names, a trailing underscore is removed (``class_``) and all others become hyphens. Attributes whose
    value is None are omitted.
    """
    rendered = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _text(value))
        for key, value in attributes.items()
        if value is not None
    )
    content = Markup("").join(escape(child) if isinstance(child, Markup) else _text(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), rendered, content)


def _text(value: object) -> Markup:
    """Format a value as escaped text, with whole numbers shortened and control characters made visible."""
    if isinstance(value, float):
        return Markup(f"{value:.1f}".removesuffix(".0"))
    return escape(visible(str(value)))


def rank_strip(profile: ReportedProfile) -> Markup:
    """Draw a bar for each rank that shows its time outside MPI, its waiting time and its transfer time."""
    rows = []
    for index, each in enumerate(profile.times):
        at, y = float(_LABEL), index * _ROW
        rows.append(element("text", f"rank {each.rank}", x=_LABEL - 6, y=y + _ROW - 4, text_anchor="end"))
        for kind, share in (("outside", each.outside), ("waiting", each.waiting), ("transfer", each.transfer)):
            width = share * (_WIDTH - _LABEL)
            title = element("title", f"rank {each.rank} on {each.host}: {percent(share)} {_KINDS[kind]}")
            rows.append(element("rect", title, class_=f"of-{kind}", x=at, y=y + 1, width=width, height=_ROW - 2))
            at += width
    label = f"Time of each rank of {profile.name}: outside MPI, waiting, transfer"
    return _chart(label, len(profile.times) * _ROW, *rows)


_KINDS = {"outside": "outside MPI", "waiting": "waiting for other ranks", "transfer": "in other MPI"}


def traffic_map(profile: ReportedProfile) -> Markup:
    """Draw the matrix of bytes sent between bins of ranks."""
    side = min(24, (_WIDTH // 2 - 40) // max(len(profile.sent), 1))
    most = max((cell for row in profile.sent for cell in row), default=0) or 1
    cells = []
    for index, row in enumerate(profile.sent):
        for other, cell in enumerate(row):
            title = element("title", f"{profile.names[index]} to {profile.names[other]}: {size(cell)}")
            x, y = 40 + other * side, index * side
            part = f"{cell / most:.3f}"
            cells.append(
                element("rect", title, class_="sent", x=x, y=y, width=side - 1, height=side - 1, fill_opacity=part)
            )
        if index % max(1, len(profile.sent) // 8) == 0:
            label = str(profile.names[index])
            cells.append(element("text", label, x=34, y=index * side + min(side, 14), text_anchor="end"))
    label = f"Bytes sent by rank (rows) to rank (columns) of {profile.name}, at most {size(most)}"
    return _chart(label, len(profile.sent) * side, *cells)


def waterfall_chart(fall: ReportedWaterfall) -> Markup:
    """Draw the losses one below the other, from an efficiency of 1 down to the measured one."""
    left, width = _CAUSE, _WIDTH - _CAUSE - 60
    lowest = min(0.0, *(1 - sum(each.value for each in fall.losses[:n]) for n in range(len(fall.losses) + 1)))
    scale = width / (1 - lowest)
    rows, at = [], 1.0
    for index, each in enumerate(fall.losses):
        y, begin = index * _ROW, min(at, at - each.value)
        interval = f" ({each.low:+.3f} to {each.high:+.3f})" if each.low is not None and each.high is not None else ""
        title = element("title", f"{each.cause}: {each.value:+.3f}{interval}")
        kind = "lost" if each.value >= 0 else "gained"
        x = left + (begin - lowest) * scale
        rows += [
            element("text", each.cause, x=left - 6, y=y + _ROW - 4, text_anchor="end"),
            element("rect", title, class_=f"of-{kind}", x=x, y=y + 1, width=abs(each.value) * scale, height=_ROW - 2),
            element("text", f"{each.value:+.3f}", x=_WIDTH, y=y + _ROW - 4, text_anchor="end"),
        ]
        if each.low is not None and each.high is not None:
            ends = [left + (min(max(at - end, lowest), 1.0) - lowest) * scale for end in (each.low, each.high)]
            middle = y + _ROW / 2
            rows.append(element("line", class_="whisker", x1=ends[0], x2=ends[1], y1=middle, y2=middle))
        at -= each.value
    return _chart(f"Lost efficiency at {fall.n}, by cause", len(fall.losses) * _ROW, *rows)


def _chart(label: str, height: int, *children: Markup) -> Markup:
    box = f"0 0 {_WIDTH} {height}"
    return element("svg", element("title", label), *children, class_="chart", viewBox=box, role="img", aria_label=label)
