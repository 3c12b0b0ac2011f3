"""Stated confidence is not above the observed one: a short simulation, and a longer one at night."""

from __future__ import annotations

import pytest

from tests.analysis.calibration import ROWS, Row, simulate

#: Equal nodes with heavy-tailed noise: one in 30 sets has a node that is called slow, of one in 100 stated.
KNOWN = ("slow nodes: none is named", "equal, heavy tails")


def cases(most_cost: int) -> list[object]:
    """Return the rows of at most this cost, those known not to hold marked as such."""
    mark = pytest.mark.xfail(reason="the null distribution of slow nodes is that of normal noise", strict=False)
    return [
        pytest.param(row, marks=[mark] if (row.what, row.truth) == KNOWN else [], id=f"{row.what}, {row.truth}")
        for row in ROWS
        if row.cost <= most_cost
    ]


@pytest.mark.alone
@pytest.mark.parametrize("row", cases(1))
def test_a_short_simulation_agrees(row: Row) -> None:
    assert simulate(row, 50).holds


@pytest.mark.deep
@pytest.mark.parametrize("row", cases(100))
def test_a_long_simulation_agrees(row: Row) -> None:
    assert simulate(row, 1000 // row.cost).holds
