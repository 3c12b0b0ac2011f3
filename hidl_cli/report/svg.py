"""Elements of the report page, and the charts for profiles."""

from __future__ import annotations

from markupsafe import Markup, escape

from hidl_cli.inputs.problems import visible
from hidl_cli.report.model import ReportedProfile, ReportedWaterfall
from hidl_cli.report.text import percent, size

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
    for number, each in enumerate(profile.times):
        at, y = float(_LABEL), number * _ROW
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
    for number, row in enumerate(profile.sent):
        for other, cell in enumerate(row):
            title = element("title", f"{profile.names[number]} to {profile.names[other]}: {size(cell)}")
            x, y = 40 + other * side, number * side
            part = f"{cell / most:.3f}"
            cells.append(
                element("rect", title, class_="sent", x=x, y=y, width=side - 1, height=side - 1, fill_opacity=part)
            )
        if number % max(1, len(profile.sent) // 8) == 0:
            label = str(profile.names[number])
            cells.append(element("text", label, x=34, y=number * side + min(side, 14), text_anchor="end"))
    label = f"Bytes sent by rank (rows) to rank (columns) of {profile.name}, at most {size(most)}"
    return _chart(label, len(profile.sent) * side, *cells)


def waterfall_chart(fall: ReportedWaterfall) -> Markup:
    """Draw the losses one below the other, from an efficiency of 1 down to the measured one."""
    left, width = _CAUSE, _WIDTH - _CAUSE - 60
    lowest = min(0.0, *(1 - sum(each.value for each in fall.losses[:n]) for n in range(len(fall.losses) + 1)))
    scale = width / (1 - lowest)
    rows, at = [], 1.0
    for number, each in enumerate(fall.losses):
        y, begin = number * _ROW, min(at, at - each.value)
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
