"""Stated and observed confidence agree: in a short simulation, and in a long one at night."""

from __future__ import annotations

import pytest

from tests.analysis.calibration import PAGE, ROWS, Row, simulate


def named(row: Row) -> str:
    return f"{row.what}, {row.truth}"


@pytest.mark.alone
@pytest.mark.parametrize("row", [row for row in ROWS if not row.is_costly], ids=named)
def test_a_short_simulation_agrees(row: Row) -> None:
    assert simulate(row, 50).holds


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_long_simulation_agrees(row: Row) -> None:
    assert simulate(row, 1000).holds


def test_the_table_has_every_row_and_each_holds() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[:2] for line in lines] == [[f"| {row.what}", row.truth] for row in ROWS]
    assert [line for line in lines if "**no**" in line] == []
