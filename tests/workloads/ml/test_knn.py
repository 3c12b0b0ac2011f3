"""k nearest neighbours on real ranks, against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from hidl_workloads.ml.streams import Stream, blobs
from tests.workloads.ml.conftest import Ended, Start

pytestmark = pytest.mark.exact

SIZES = (1, 2, 3, 4)
SHAPE = {"columns": 3, "centers": 4, "spread": 6.0}
WORDS = ("--columns=3", "--classes=4", "--spread=6", "--queries=300", "--references=1000", "--block=32")


@pytest.fixture(scope="session")
def searches(succeed: Start) -> dict[int, Ended]:
    return {size: succeed("knn", size, *WORDS, "--neighbours=7") for size in SIZES}


@pytest.mark.parametrize("size", SIZES)
def test_the_classes_are_those_that_scikit_learn_finds(searches: dict[int, Ended], size: int) -> None:
    references, classes = blobs(0, Stream.POINTS, range(1000), **SHAPE)
    queries, truth = blobs(0, Stream.QUERIES, range(300), **SHAPE)
    expected = KNeighborsClassifier(7, algorithm="brute").fit(references, classes).predict(queries)
    assert (searches[size].result["predicted"] == expected).all()
    assert searches[size].metric("accuracy")["value"] == pytest.approx((expected == truth).mean())
    assert 0.3 < (expected == truth).mean() < 0.95  # or the test would tell little


def test_all_ranks_have_all_classes(searches: dict[int, Ended]) -> None:
    checksum = searches[4].metric("result_checksum")
    assert checksum["samples"] == [checksum["value"]] * 4


def test_equally_near_references_are_taken_by_row(succeed: Start) -> None:
    """All references of a class are one point here: which of them are found does not depend on the ranks."""
    words = ("--spread=0", "--queries=40", "--references=200", "--classes=3", "--block=16", "--neighbours=5")
    one, four = (succeed("knn", size, *words).result["predicted"] for size in (1, 4))
    _, truth = blobs(0, Stream.QUERIES, range(40), columns=16, centers=3, spread=0.0)
    assert (one == truth).all()
    assert (four == truth).all()


def test_more_ranks_than_blocks_and_as_many_neighbours_as_references(succeed: Start) -> None:
    words = ("--queries=3", "--references=5", "--neighbours=5", "--classes=2")
    predicted = succeed("knn", 4, *words).result["predicted"]
    _, classes = blobs(0, Stream.POINTS, range(5), columns=16, centers=2, spread=3.0)
    assert set(predicted) == {int(np.bincount(classes).argmax())}


def test_more_neighbours_than_references_are_refused(refuse: Callable[..., str]) -> None:
    assert "6 neighbours of 5 reference(s)" in refuse("knn", 2, "--references=5", "--neighbours=6")
