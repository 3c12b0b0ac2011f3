"""Numbers as programs print them."""

from __future__ import annotations

import pytest

from hidl_cli.runs.parsers.patterns import read_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        (" -1.5e-3 ", -1.5e-3),
        ("1.", 1),
        ("1.7908e+02", 179.08),
        ("1.0D+03", 1000),
        ("1,234.5", 1234.5),
        ("12,345,678", 12345678),
        ("1.2K", 1200),
        ("1.2 M", 1.2e6),
        ("3Gi", 3 * 2**30),
        ("98.5%", 98.5),
    ],
)
def test_a_number_is_read(text: str, number: float) -> None:
    assert read_number(text.encode(), "x") == pytest.approx(number)


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [("0:01:23", "s", 83), ("01:23", "s", 83), ("1-00:00:01", "s", 86401), ("1:30:00", "h", 1.5)],
)
def test_a_clock_is_read_as_time(text: str, unit: str, number: float) -> None:
    assert read_number(text.encode(), unit) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "x", "1,5", "1.2.3", "1 2", "K", "0:01:23", "\xff", "9" * 101 + "x"])
def test_anything_else_is_not_a_number(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        read_number(text.encode("latin-1"), "images/s")


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1e999"])
def test_a_number_must_be_finite(text: str) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        read_number(text.encode(), "s")
