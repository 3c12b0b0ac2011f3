"""Units as programs print them."""

from __future__ import annotations

import pytest

from hidl_cli.plan.units import better_of, convert, is_time


@pytest.mark.parametrize(
    ("value", "printed", "wanted", "result"),
    [
        (3, "images/s", "images/s", 3),
        (3, "img/sec", "images/s", 3),
        (3, "tokens per second", "token/s", 3),
        (4, "ms", "s", 0.004),
        (4, "µs", "us", 4),
        (1, "h", "s", 3600),
        (1, "GB/s", "MB/s", 1000),
        (1, "MiB/s", "MB/s", 1.048576),
        (1, "GB/s", "Gbit/s", 8),
        (2500, "Gflops", "Tflop/s", 2.5),
        (1, "GFLOPS", "Gflop/s", 1),
        (5, "Matom-step/s", "atom-step/s", 5e6),
        (25.8, "katom-step/s", "Matom-step/s", 0.0258),
        (2, "s/it", "it/s", 0.5),
        (100, "ms/step", "steps/s", 10),
        (10, "ns/day", "us/day", 0.01),
        (2, "hours/ns", "ns/day", 12),
        (12, "ns/day", "hour/ns", 2),
        (7, "widgets", "widgets", 7),
        (7, "kwidgets", "widgets", 7000),
    ],
)
def test_a_number_is_converted(value: float, printed: str, wanted: str, result: float) -> None:
    assert convert(value, printed, wanted) == pytest.approx(result)


@pytest.mark.parametrize(("printed", "wanted"), [("s", "MB"), ("MB/s", "MB"), ("it", "s"), ("images/s", "tokens/s")])
def test_units_of_different_things_are_an_error(printed: str, wanted: str) -> None:
    with pytest.raises(ValueError, match="cannot be converted"):
        convert(1, printed, wanted)


@pytest.mark.parametrize(
    ("unit", "better"),
    [("s", "lower"), ("ms/step", "lower"), ("images/s", "higher"), ("Gflops", "higher"), ("ns/day", "higher"),
     ("hours/ns", "lower"), ("1", None), ("%", None)],
)  # fmt: skip
def test_a_unit_says_which_direction_is_better(unit: str, better: str | None) -> None:
    assert better_of(unit) == better


def test_a_rate_is_not_a_time() -> None:
    assert is_time("min")
    assert not is_time("it/s")
