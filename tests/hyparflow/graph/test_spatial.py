"""The rows that each part has and needs, compared with a convolution of the whole column of numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hyparflow.graph.spatial import Halo, Window, rows_of
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.exact

HEIGHTS = st.integers(1, 40)
PARTS = st.integers(1, 8)


@given(height=HEIGHTS, parts=PARTS)
def test_parts_have_each_row_once_and_differ_by_one_at_most(height: int, parts: int) -> None:
    divided = [rows_of(height, parts, part) for part in range(parts)]
    assert [row for rows in divided for row in rows] == list(range(height))
    assert max(map(len, divided)) - min(map(len, divided)) <= 1
    assert len(divided[-1]) == max(map(len, divided))


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, int, Window]:
    """A height, the number of outputs, and a window as Keras places it."""
    size, stride, dilation = draw(st.integers(1, 7)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    padding = draw(st.sampled_from(["same", "valid"]))
    reach = (size - 1) * dilation + 1
    height = draw(st.integers(reach if padding == "valid" else 1, 60))
    outputs = -(-height // stride) if padding == "same" else (height - reach) // stride + 1
    return height, outputs, Window.of(size, stride, dilation, padding=padding, extent=height)


def convolve(values: np.ndarray, window: Window, kernel: np.ndarray) -> np.ndarray:
    """Convolve without padding, one output after the other."""
    reach = (window.size - 1) * window.dilation + 1
    starts = range(0, len(values) - reach + 1, window.stride)
    return np.array([values[start : start + reach : window.dilation] @ kernel for start in starts])


@given(case=windows(), parts=PARTS, seed=st.integers(0, 2**32 - 1))
def test_the_parts_compute_the_convolution_of_the_whole(case: tuple[int, int, Window], parts: int, seed: int) -> None:
    height, outputs, window = case
    parts = min(parts, outputs, height)
    random = np.random.default_rng(seed)
    values, kernel = random.integers(-9, 9, height), random.integers(-9, 9, window.size)
    reach = (window.size - 1) * window.dilation + 1
    after = max(0, (outputs - 1) * window.stride + reach - height - window.before)
    expected = convolve(np.pad(values, (window.before, after)), window, kernel)
    halo = Halo.of_window(height, outputs, window, parts)
    made = []
    for part in range(parts):
        rows = [row for _, rows in halo.sources(part) for row in rows]
        made.extend(convolve(np.pad(values[rows], halo.padding(part)), window, kernel))
    assert made == expected.tolist()


@given(case=windows(), parts=PARTS)
def test_what_a_part_receives_is_what_the_owner_sends(case: tuple[int, int, Window], parts: int) -> None:
    height, outputs, window = case
    parts = min(parts, outputs, height)
    halo = Halo.of_window(height, outputs, window, parts)
    received = {(owner, part, rows) for part in range(parts) for owner, rows in halo.sources(part) if owner != part}
    sent = {(part, other, rows) for part in range(parts) for other, rows in halo.receivers(part)}
    assert received == sent
    assert all(set(rows) <= set(rows_of(height, parts, owner)) for owner, _, rows in sent)


@given(height=HEIGHTS, parts=PARTS)
def test_a_whole_tensor_comes_from_all_parts(height: int, parts: int) -> None:
    parts = min(parts, height)
    halo = Halo.of_whole(height, parts)
    for part in range(parts):
        assert [row for _, rows in halo.sources(part) for row in rows] == list(range(height))
