from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.report import text


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (0, "0"),
        (1.62, "1.62"),
        (2450.4, "2,450"),
        (12100, "12,100"),
        (0.85, "0.85"),
        (0.00012345, "0.0001234"),
        (1e-7, "1.000e-07"),
        (3e12, "3.000e+12"),
        (-4.5, "-4.5"),
        (100, "100"),
        (float("nan"), "nan"),
    ],
)
def test_a_number_has_four_digits_and_an_exponent_only_where_it_must(value: float, read: str) -> None:
    assert text.number(value) == read


@given(st.floats(min_value=1e-4, max_value=9e8))
def test_a_number_is_right_to_four_digits(value: float) -> None:
    assert float(text.number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-4)


@pytest.mark.parametrize(
    ("share", "signed", "read"),
    [(0.0512, False, "5.1 %"), (-0.05, True, "\N{MINUS SIGN}5.0 %"), (0.05, True, "+5.0 %"), (-0.0001, True, "0.0 %")],
)
def test_a_share_is_per_cent(share: float, signed: bool, read: str) -> None:
    assert text.percent(share, signed=signed) == read


@pytest.mark.parametrize(
    ("count", "read"), [(0, "0"), (1, "1"), (1023, "1023"), (1024, "1 Ki"), (65536, "64 Ki"), (4 << 20, "4 Mi")]
)
def test_a_message_size_is_binary(count: int, read: str) -> None:
    assert text.size(count) == read


@pytest.mark.parametrize(
    ("value", "read"), [(250, "250"), (12500, "12,500"), (260000, "260 k"), (1.5e6, "1.5 M"), (2e9, "2 G")]
)
def test_an_axis_gets_short_numbers(value: float, read: str) -> None:
    assert text.short(value) == read


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ((1.5, 2500.0), "1.5  2,500"),
        ((1.5, 1.5), "1.5  1.5"),
        (("9f2c41" * 8, "9f2c41" * 8), "9f2c419f2c419f2c"),
        (("a", "b"), "a  b"),
        ((), ""),
    ],
)
def test_repetitions_stand_in_a_row_and_equal_checksums_once(values: tuple[float | str, ...], read: str) -> None:
    assert text.listed(values) == read


@pytest.mark.parametrize(
    ("seconds", "read"), [(None, ""), (4.25, "4.2 s"), (59.96, "60 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_a_duration_is_read_in_two_units(seconds: float | None, read: str) -> None:
    assert text.duration(seconds) == read


@pytest.mark.parametrize(
    "created", ["2026-09-01T02:00:00+00:00", "2026-09-01T02:00:00Z", "2026-09-01T02:00:00", "2026-09-01T04:00:00+02:00"]
)
def test_a_time_is_reported_in_utc(created: str) -> None:
    assert text.minute(created) == "2026-09-01 02:00 UTC"
    assert text.when(created) == datetime(2026, 9, 1, 2, tzinfo=timezone.utc)


def test_what_is_not_a_time_is_reported_as_it_is() -> None:
    assert text.minute("yesterday") == "yesterday"
