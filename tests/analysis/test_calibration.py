"""Stated and observed confidence agree: in a short simulation, and in a long one at night."""

from __future__ import annotations

import pytest

from tests.analysis.calibration import PAGE, PLANTED, ROWS, Row, find, reliability, simulate, state


def named(row: Row) -> str:
    return f"{row.what}, {row.truth}"


@pytest.mark.alone
@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_short_simulation_agrees(row: Row) -> None:
    assert simulate(row, 50).holds


@pytest.mark.alone
def test_a_short_simulation_of_bisects_agrees() -> None:
    results = reliability([state(seed) for seed in range(180)])
    assert [result for result in results if not result.holds] == []


@pytest.mark.alone
def test_bisect_finds_what_is_planted() -> None:
    found = [(planted, find(planted, 10)) for planted in PLANTED]
    assert all(each.wrong <= 0.2 for _, each in found)
    # With 10 % of noise, most searches end undecided, as the page says.
    assert all(each.right >= 0.5 for planted, each in found if "10 % of noise" not in planted.truth)


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_long_simulation_agrees(row: Row) -> None:
    assert simulate(row, 1000).holds


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_a_long_simulation_of_bisects_agrees() -> None:
    results = reliability([state(seed) for seed in range(9000)])
    assert [result for result in results if not result.holds] == []


def test_the_table_has_every_row_and_each_holds() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    names = [line.split(" | ")[:2] for line in lines]
    bisects = [[f"| {each.what}", each.truth] for each in reliability([])]
    assert names[1 : 1 + len(ROWS) + len(bisects)] == [[f"| {row.what}", row.truth] for row in ROWS] + bisects
    assert [name[0] for name in names[-len(PLANTED) :]] == [f"| {planted.truth}" for planted in PLANTED]
    assert [line for line in lines if "**no**" in line] == []
