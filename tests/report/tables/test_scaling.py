from __future__ import annotations

import io

import pytest
from rich.console import Console

from hidl_cli.analysis.scaling import Observation, Study, judge
from hidl_cli.report.tables import four_digits, scaling_table


def study(steps: dict[int, float], *, target: float = 0.7, unit: str = "images/s", repetitions: int = 5) -> Study:
    """A weak-scaling study with the given means and 1 % of noise."""
    noise = [1.0, 1.01, 0.99, 1.006, 0.995]
    observations = [
        Observation(step, r, mean * noise[(r + step) % 5]) for step, mean in steps.items() for r in range(repetitions)
    ]
    metric = "images_per_second"
    return judge(kind="weak", target=target, metric=metric, unit=unit, step_unit="nodes", observations=observations)


TWO = {1: 30.0, 2: 52.0}


def lines(judged: Study, *, encoding: str = "utf-8", width: int = 80) -> list[str]:
    """What a terminal of that encoding shows."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    Console(file=stream, width=width).print(scaling_table(judged))
    stream.flush()
    return raw.getvalue().decode(encoding).splitlines()


def test_a_row_says_what_was_measured_and_how_surely() -> None:
    cells = next(line for line in lines(study(TWO)) if line.strip().startswith("2 ")).split()
    assert cells[:6] == ["2", "5", "52.01", "0.8%", "1.73", "0.866"]
    assert cells[7] == "to"
    assert float(cells[6]) < 0.866 < float(cells[8])


def test_the_bar_is_the_measured_part_of_the_ideal() -> None:
    half = next(line for line in lines(study({1: 30.0, 2: 30.6})) if line.strip().startswith("2 "))
    assert half.count("━") == 5


@pytest.mark.parametrize(
    ("steps", "target", "begins"),
    [
        (TWO, 0.7, "pass: 2 nodes"),
        (TWO, 0.9, "fail: 2 nodes"),
        (TWO, 0.866, "inconclusive: 2 nodes"),
        ({1: 30.0}, 0.7, "no verdict: "),
    ],
)
def test_the_verdict_and_its_reason_follow_the_rows(steps: dict[int, float], target: float, begins: str) -> None:
    assert any(line.startswith(begins) for line in lines(study(steps, target=target)))


def test_an_inconclusive_study_says_what_to_do_next() -> None:
    assert any(line.startswith("next: ") for line in lines(study(TWO, target=0.866)))


@pytest.mark.parametrize("repetitions", [1, 5])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("mean", [12345.6, 165_536_123.4, 9_165_536_123.4])
def test_up_to_512_nodes_fit_80_columns_with_nothing_cut(encoding: str, mean: float, repetitions: int) -> None:
    shown = lines(study({2**i: mean * 2**i for i in range(10)}, repetitions=repetitions), encoding=encoding)
    assert max(map(len, shown)) <= 80
    assert not any("…" in line or "..." in line for line in shown)
    assert sum(line.strip()[:1].isdigit() for line in shown) == 10


def test_a_console_without_unicode_gets_ascii() -> None:
    shown = lines(study(TWO), encoding="ascii")
    assert any("---------" in line for line in shown)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.030612, "0.03061"), (3.14159, "3.142"), (26.1449, "26.14"), (13456.7, "13,457")],
)
def test_numbers_have_four_digits_and_no_exponent(value: float, shown: str) -> None:
    assert four_digits(value) == shown


def test_markup_in_a_unit_is_shown_as_it_is() -> None:
    assert any("[b]/s" in line for line in lines(study(TWO, unit="[b]/s")))
