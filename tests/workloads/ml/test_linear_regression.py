"""Least squares on real ranks, against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from hidl_workloads.ml.streams import Stream, normal
from tests.workloads.ml.conftest import Start

pytestmark = pytest.mark.exact

WORDS = ("--per_rank=false", "--points=500", "--columns=6", "--noise=2", "--block=16")


def data(condition: float = 1) -> tuple[np.ndarray, np.ndarray]:
    """The same points and targets as the program's."""
    features = normal(0, Stream.FEATURES, range(500), range(6))
    if condition > 1:
        basis, _ = np.linalg.qr(normal(0, Stream.BASIS, range(6), range(6)))
        features = features @ (basis * np.geomspace(1, 1 / condition, 6)) @ basis.T
    noise = normal(0, Stream.NOISE, range(500), range(1))
    return features, (features @ normal(0, Stream.COEFFICIENTS, range(6), range(1)) + 1 + 2 * noise).ravel()


@pytest.mark.parametrize("solver", ["normal", "tsqr"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_coefficients_are_scikit_learns(succeed: Start, solver: str, size: int) -> None:
    found = succeed("linear_regression", size, *WORDS, f"--solver={solver}").result
    expected = LinearRegression().fit(*data())
    assert np.allclose(found["coefficients"], expected.coef_, rtol=1e-10)
    assert found["intercept"] == pytest.approx(expected.intercept_, rel=1e-10)


def test_tsqr_stands_a_condition_that_the_normal_equations_do_not(succeed: Start, refuse: Callable[..., str]) -> None:
    badly = (*WORDS, "--condition=1e9")
    found = succeed("linear_regression", 2, *badly, "--solver=tsqr").result["coefficients"]
    expected = LinearRegression(tol=1e-15).fit(*data(1e9)).coef_
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)
    assert "try solver=tsqr" in refuse("linear_regression", 2, *badly, "--solver=normal")


def test_columns_that_depend_on_each_other_are_refused(refuse: Callable[..., str]) -> None:
    said = refuse("linear_regression", 2, *WORDS, "--condition=1e18", "--solver=tsqr")
    assert "omit some" in said


def test_too_few_points_are_refused(refuse: Callable[..., str]) -> None:
    said = refuse("linear_regression", 2, "--points=3", "--columns=6")
    assert "6 point(s) do not determine 7 unknowns" in said


def test_ranks_without_points_take_part(succeed: Start) -> None:
    words = ("--per_rank=false", "--points=3", "--columns=1", "--solver=tsqr")
    one, four = (succeed("linear_regression", size, *words).result["coefficients"] for size in (1, 4))
    assert np.allclose(one, four)
