"""The frame of a chart: its place on the page, axes with labels and grid, and the marks that all charts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hidl_cli.report.html.svg import Scale, Tick, element

#: A telephone shows the drawing at about 0.8 of this size, a desk at 1.3: letters stay readable on both.
WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 12, 40
_LETTER = 6.4  # about the width of one at the size of the labels


@dataclass(frozen=True)
class Frame:
    """A chart's axes: where values go, and which ticks they have."""

    x: Scale
    y: Scale
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    x_label: str
    y_label: str

    def draw(self, title: str, *content: Markup) -> Markup:
        """The whole drawing, with ``content`` between grid and labels; ``title`` is what a screen reader says."""
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
        turned = f"rotate(-90 11 {middle:.0f})"
        labels.append(element("text", self.y_label, x=11, y=middle, class_="label", transform=turned))
        return element("g", *labels, aria_hidden="true")

    @staticmethod
    def _within(place: float, label: str) -> float:
        """The middle of a label that would else reach beyond the drawing's right edge."""
        return min(place, WIDTH - 2 - len(label) * _LETTER / 2)


def across(low: float, high: float, *, logarithmic: bool = False, inset: float = 0.0) -> Scale:
    """The scale of the horizontal axis; ``inset`` keeps the marks off its ends."""
    return Scale(low, high, LEFT + inset, WIDTH - RIGHT - inset, logarithmic)


def upwards(low: float, high: float, *, logarithmic: bool = False) -> Scale:
    """The scale of the vertical axis."""
    return Scale(low, high, HEIGHT - BOTTOM, TOP, logarithmic)


def line(places: Sequence[tuple[float, float]], css: str) -> Markup:
    """Straight lines from place to place."""
    return element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places), class_=css)


def level(frame: Frame, value: float, css: str) -> Markup:
    """A horizontal line over the whole width."""
    return line([(LEFT, frame.y(value)), (WIDTH - RIGHT, frame.y(value))], css)


def point(
    x: float, y: float, said: str, css: str, *, bar: tuple[float, float] | None = None, dense: bool = False
) -> Markup:
    """A mark that says ``said`` where it is touched, with its interval as a bar; small where marks are ``dense``."""
    parts = [element("title", said)]
    if bar is not None:
        low, high = bar
        ends = "" if dense else f"M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
        parts.append(element("path", d=f"M{x:.1f} {low:.1f}V{high:.1f}{ends}", class_="bar"))
    if "square" in css:
        parts.append(element("rect", x=x - 3.5, y=y - 3.5, width=7, height=7))
    else:
        parts.append(element("circle", cx=x, cy=y, r=2.5 if dense else 4))
    return element("g", *parts, class_=f"pt {css}")
