from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from hidl_cli.report.html import AxisScale, doubling_ticks, element, linear_ticks, log_ticks, time_ticks

positive = st.floats(min_value=1e-3, max_value=1e6)


@given(st.text(), st.text())
def test_whatever_the_text_an_element_has_just_that_text(inside: str, attribute: str) -> None:
    found = ElementTree.fromstring(element("text", inside, aria_label=attribute))
    assert list(found) == []
    assert list(found.attrib) == ["aria-label"]


def test_text_is_escaped_and_drawings_are_not() -> None:
    drawn = element("g", element("circle", r=1), "<circle/>", class_='"')
    assert drawn == '<g class="&#34;"><circle r="1"></circle>&lt;circle/&gt;</g>'


def test_control_characters_are_made_visible() -> None:
    assert element("title", "a\x00b\u202ec\ud800") == r"<title>a\x00b\u202ec\ud800</title>"


def test_an_attribute_that_is_none_is_left_out() -> None:
    assert element("path", d=None, x=1.25) == Markup('<path x="1.2"></path>')


@given(positive, positive, st.booleans())
def test_a_scale_puts_its_ends_onto_its_ends(low: float, high: float, logarithmic: bool) -> None:
    if math.isclose(low, high, rel_tol=1e-6):
        return
    scale = AxisScale(low, high, 0, 100, logarithmic)
    assert (scale(low), scale(high)) == (pytest.approx(0), pytest.approx(100))


def test_a_scale_of_one_value_puts_it_into_the_middle() -> None:
    assert AxisScale(5, 5, 0, 100)(5) == 50


@given(positive, positive)
def test_ticks_lie_within_the_axis_and_are_few(low: float, span: float) -> None:
    ticks = linear_ticks(low, low + span, str)
    assert 1 <= len(ticks) <= 8
    assert all(low - span * 1e-6 <= tick.value <= (low + span) * (1 + 1e-6) for tick in ticks)


@given(positive, st.floats(min_value=1.5, max_value=1e9))
def test_logarithmic_ticks_lie_within_the_axis_and_are_few(low: float, factor: float) -> None:
    ticks = log_ticks(low, low * factor, str)
    assert len(ticks) <= 7
    assert all(low * 0.998 <= tick.value <= low * factor * 1.002 for tick in ticks)


@given(st.lists(st.integers(1, 1 << 30), min_size=1, unique=True))
def test_steps_are_labelled_up_to_the_last_with_room_between(values: list[int]) -> None:
    values.sort()
    ticks = doubling_ticks(values, str)
    assert ticks[-1].value == values[-1]
    assert len(ticks) <= 8


@pytest.mark.parametrize("days", [0, 0.01, 0.5, 1, 5, 40, 400, 4000])
def test_times_are_labelled_at_every_span(days: float) -> None:
    begin = 1_790_000_000.0
    ticks = time_ticks(begin, begin + days * 86400)
    assert 1 <= len(ticks) <= 8
    assert len({tick.label for tick in ticks}) == len(ticks)
