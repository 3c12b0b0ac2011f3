"""The report's charts: scaling, history and curves by message size."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from hidl_cli.analysis.scaling.study import StepResult, Study
from hidl_cli.report.html.frame import BOTTOM, HEIGHT, TOP, Frame, across, level, line, point, upwards
from hidl_cli.report.html.svg import Scale, Tick, doubling_ticks, element, linear_ticks, log_ticks, time_ticks
from hidl_cli.report.model import Comparison, Curve, Line, Trend
from hidl_cli.report.text import counted, day, minute, number, percent, short, size, when

WIDEST_LINEAR = 12  # with more than so many times the baseline, small steps would crowd in a corner
MOST_WIDE = 60  # marks of the usual size; more would cover one another
_ROOM = 0.06  # of the range is left free above and below what is drawn


def speedup(study: Study) -> Markup:
    """Draw the speed-up of each step with its interval, and the ideal line; logarithmic over many octaves."""
    steps, wide = study.steps, _is_wide(study)
    highest = max(s.ideal_speedup * max(1.0, s.interval.high if s.interval else s.efficiency) for s in steps)
    lowest = min(step.speedup for step in steps)
    y = upwards(min(1.0, lowest) * 0.9, highest * 1.1, logarithmic=True) if wide else upwards(0, highest * 1.05)
    ticks = log_ticks(y.low, y.high, short) if wide else linear_ticks(0, y.high, short)
    label = f"speed-up over {counted(study.baseline.n, study.step_unit)}"
    frame = Frame(_step_scale(study), y, _step_ticks(study), ticks, study.step_unit, label)
    ideal = line([(frame.x(step.n), y(step.ideal_speedup)) for step in steps], "ideal")
    measured = line([(frame.x(step.n), y(step.speedup)) for step in steps], "measured")
    points = [_step_point(frame, step, step.speedup, step.ideal_speedup, said(step, study)) for step in steps]
    return frame.draw(f"Speed-up by {study.step_unit}. {_format_verdict(study)}", ideal, measured, *points)


def efficiency(study: Study) -> Markup:
    """Draw the efficiency of each step with its interval, the target and the ideal."""
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
    points = [_step_point(frame, step, step.efficiency, 1.0, said(step, study)) for step in steps]
    lines = [level(frame, 1.0, "ideal"), level(frame, study.target, "target")]
    return frame.draw(f"Efficiency by {study.step_unit}. {_format_verdict(study)}", *lines, measured, *points)


def said(step: StepResult, study: Study) -> str:
    """Describe a step in one sentence."""
    mean = f"{counted(step.n, study.step_unit)}: {number(step.mean)} {study.unit}"
    text = f"{mean}, speed-up {number(step.speedup)}, efficiency {step.efficiency:.3f}"
    return f"{text} ({step.interval.low:.3f} to {step.interval.high:.3f})" if step.interval else text


def _format_verdict(study: Study) -> str:
    return f"{'; '.join(said(step, study) for step in study.steps)}. Target {number(study.target)}."


def _is_wide(study: Study) -> bool:
    return study.steps[-1].ideal_speedup > WIDEST_LINEAR


def _step_scale(study: Study) -> Scale:
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
    """Draw a value over time: each run with its range, the levels between change points, and the target."""
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
    return frame.draw(_story(trend), *content)


def _changes(frame: Frame, trend: Trend, times: Sequence[float]) -> list[Markup]:
    """Draw a vertical line at each change, and the levels before and after it."""
    marks = []
    starts = {p.run: time for p, time in zip(trend.points, times, strict=True)}
    borders = [starts[change.run] for change in trend.changes if change.run in starts]
    for change, time in zip([c for c in trend.changes if c.run in starts], borders, strict=True):
        earlier = max((t for t in times if t < time), default=time)
        place = frame.x((earlier + time) / 2)
        start = max((b for b in borders if b < time), default=times[0])
        stop = min((b for b in borders if b > time), default=times[-1])
        marks.append(line([(frame.x(start), frame.y(change.before)), (place, frame.y(change.before))], "level"))
        marks.append(line([(place, frame.y(change.after)), (frame.x(stop), frame.y(change.after))], "level"))
        said_here = f"{day(change.created)}: {percent(change.relative, signed=True)}"
        upright = element("line", element("title", said_here), x1=place, x2=place, y1=TOP, y2=HEIGHT - BOTTOM)
        marks.append(element("g", upright, class_="change"))
    return marks


def _story(trend: Trend) -> str:
    """Describe the history in words, for screen readers."""
    first, last = trend.points[0], trend.points[-1]
    text = (
        f"{trend.metric} of {trend.name} over {len(trend.points)} runs, from {number(first.value)} {trend.unit} on "
        f"{day(first.created)} to {number(last.value)} {trend.unit} on {day(last.created)}."
    )
    for change in trend.changes:
        text += f" On {day(change.created)} it changed by {percent(change.relative, signed=True)}."
    return text if trend.changes else f"{text} No change point."


def curve(shown: Curve) -> Markup:
    """Draw a metric by message size on logarithmic axes, with the baseline's if there is one."""
    lines = [line_ for line_ in (shown.baseline, shown.line) if line_ is not None]
    points = [p for line_ in lines for p in line_.points if p[0] > 0 and p[1] > 0]
    sizes = sorted({p[0] for p in points})
    values = [p[1] for p in points]
    y = upwards(min(values) / 1.15, max(values) * 1.15, logarithmic=True)
    x = across(sizes[0], sizes[-1], logarithmic=True, inset=8)
    ticks = log_ticks(y.low, y.high, short)
    frame = Frame(x, y, doubling_ticks(sizes, size), ticks, "message size, bytes", shown.unit)
    content = []
    for line_, css, whose in ((shown.baseline, "baseline square", "baseline, "), (shown.line, "measured", "")):
        if line_ is not None:
            content += _curve_line(frame, line_, css, shown.unit, whose=whose)
    first, last = shown.line.points[0], shown.line.points[-1]
    story = (
        f"{shown.metric} of {shown.name} by message size: {number(first[1])} {shown.unit} at {size(first[0])} bytes, "
        f"{number(last[1])} {shown.unit} at {size(last[0])} bytes."
    )
    return frame.draw(story, *content)


def comparison(shown: Comparison) -> Markup:
    """Draw several curves on the same logarithmic axes."""
    points = [p for _, line_ in shown.lines for p in line_.points if p[0] > 0 and p[1] > 0]
    sizes = sorted({p[0] for p in points})
    values = [p[1] for p in points]
    y = upwards(min(values) / 1.15, max(values) * 1.15, logarithmic=True)
    x = across(sizes[0], sizes[-1], logarithmic=True, inset=8)
    ticks = log_ticks(y.low, y.high, short)
    frame = Frame(x, y, doubling_ticks(sizes, size), ticks, "message size, bytes", shown.unit)
    content = []
    for place, (name, line_) in enumerate(shown.lines, start=1):
        content += _curve_line(frame, line_, f"line-{place}", shown.unit, whose=f"{name}, ")
    names = ", ".join(name for name, _ in shown.lines)
    return frame.draw(f"{shown.metric} of {shown.name} by message size: {names}.", *content)


def _curve_line(frame: Frame, line_: Line, css: str, unit: str, *, whose: str = "") -> list[Markup]:
    drawn = [(size_, value) for size_, value in line_.points if size_ > 0 and value > 0]
    return [
        line([(frame.x(s), frame.y(v)) for s, v in drawn], css),
        *(point(frame.x(s), frame.y(v), f"{whose}{size(s)} bytes: {number(v)} {unit}", css) for s, v in drawn),
    ]


def _with_room(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * _ROOM or abs(high) * 0.1 or 1.0
    return low - room, high + room
