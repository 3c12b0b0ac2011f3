"""SUMMA on real ranks, against NumPy's product of the same matrices."""

from __future__ import annotations

import numpy as np
import pytest

from hidl_workloads.ml.streams import Stream, normal
from tests.workloads.ml.conftest import Start

pytestmark = pytest.mark.exact

SHAPES = {"square": (64, 64, 64), "odd": (37, 53, 29), "flat": (2, 300, 3), "tall": (200, 1, 1), "tiny": (1, 1, 1)}


@pytest.mark.parametrize("overlap", ["true", "false"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_product_is_numpys(succeed: Start, ranks: int, overlap: str) -> None:
    assert_product(succeed, ranks, (37, 53, 29), "--panel=8", f"--overlap={overlap}")


@pytest.mark.deep
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_any_shape_will_do(succeed: Start, shape: tuple[int, int, int]) -> None:
    assert_product(succeed, 4, shape)


def assert_product(succeed: Start, ranks: int, shape: tuple[int, int, int], *words: str) -> None:
    rows, inner, columns = shape
    ended = succeed("matmul", ranks, f"--rows={rows}", f"--inner={inner}", f"--columns={columns}", *words)
    left = normal(0, Stream.LEFT, range(rows), range(inner))
    right = normal(0, Stream.RIGHT, range(inner), range(columns))
    assert np.allclose(ended.result["product"], left @ right, rtol=0, atol=1e-14 * inner)


def test_rows_count_for_each_rank_and_the_rate_for_all(succeed: Start) -> None:
    ended = succeed("matmul", 2, "--rows=20", "--inner=30", "--columns=40", "--per_rank=true")
    assert ended.result["product"].shape == (40, 40)
    work = 2e-9 * 40 * 30 * 40
    assert ended.metric("compute_rate")["value"] == pytest.approx(work / ended.metric("product_time")["value"])
