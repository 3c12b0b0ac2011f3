"""Truncated SVD on real ranks, against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD

from hidl_workloads.ml.streams import Stream, normal
from tests.workloads.ml.conftest import Start

pytestmark = pytest.mark.exact

WORDS = ("--per_rank=false", "--points=400", "--columns=20", "--components=4", "--decay=0.7", "--block=32")


def matrix() -> np.ndarray:
    """The same as the program's."""
    basis, _ = np.linalg.qr(normal(0, Stream.BASIS, range(20), range(20)))
    return normal(0, Stream.FEATURES, range(400), range(20)) * 0.7 ** np.arange(20) @ basis


@pytest.mark.parametrize("solver", ["covariance", "randomized"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_values_and_vectors_are_scikit_learns(succeed: Start, solver: str, size: int) -> None:
    found = succeed("tsvd", size, *WORDS, f"--solver={solver}").result
    expected = TruncatedSVD(4, algorithm="arpack", random_state=0).fit(matrix())
    assert np.allclose(found["singular_values"], expected.singular_values_, rtol=1e-8)
    assert np.allclose(np.abs((found["components"] * expected.components_).sum(axis=1)), 1, rtol=1e-8)


def test_a_randomized_result_that_is_too_coarse_is_refused(refuse: Callable[..., str]) -> None:
    coarse = ("--solver=randomized", "--power_iterations=0", "--oversampling=0", "--decay=1")
    assert "the result is wrong: the largest relative difference between X'X v" in refuse("tsvd", 2, *WORDS, *coarse)


def test_a_matrix_of_low_rank_has_no_more_components(refuse: Callable[..., str], succeed: Start) -> None:
    flat = (*WORDS, "--decay=0", "--solver=randomized")
    assert "only 1 nonzero component(s), not 4" in refuse("tsvd", 2, *flat)
    assert succeed("tsvd", 2, *flat, "--components=1").metric("explained")["value"] == pytest.approx(1)


def test_more_components_than_columns_are_refused(refuse: Callable[..., str]) -> None:
    said = refuse("tsvd", 2, "--points=50", "--columns=3", "--components=4")
    assert "4 components of a matrix of 100 x 3" in said
