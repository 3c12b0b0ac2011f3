"""The sweep over numbers of clusters, on real ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from hidl_workloads.ml.streams import Stream, blobs
from tests.workloads.ml.conftest import Ended, Start

pytestmark = pytest.mark.exact

POINTS = ("--points=900", "--columns=4", "--centers=5", "--spread=0.5", "--block=64")
SWEEP = ("--least_clusters=2", "--most_clusters=8", "--starts=2", "--sample=900")
LAYOUTS = {"1 rank": (1, 1), "2 groups of 1": (2, 1), "1 group of 2": (2, 2), "groups of 1 and 2": (3, 2), "4": (4, 1)}


@pytest.fixture(scope="session")
def sweeps(succeed: Start) -> dict[str, Ended]:
    return {
        name: succeed("kmeans_sweep", size, *POINTS, *SWEEP, f"--group={group}")
        for name, (size, group) in LAYOUTS.items()
    }


@pytest.mark.deep
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_ranks_finds_the_same_table_bit_for_bit(sweeps: dict[str, Ended], layout: str) -> None:
    assert (sweeps[layout].result["table"][:, :3] == sweeps["1 rank"].result["table"][:, :3]).all()


def test_every_number_of_clusters_is_tried_from_every_start(sweeps: dict[str, Ended]) -> None:
    result = sweeps["2 groups of 1"].result
    tried = set(zip(result["clusters"].tolist(), result["seeds"].tolist(), strict=True))
    assert tried == {(clusters, seed) for clusters in range(2, 9) for seed in (0, 1)}
    assert (result["table"][:, 1:] > 0).all()  # inertia, iterations and time of each


def test_there_are_as_many_clusters_as_the_points_were_made_from(sweeps: dict[str, Ended]) -> None:
    assert sweeps["1 rank"].metric("best_clusters")["value"] == 5


def test_the_silhouette_is_scikit_learns(sweeps: dict[str, Ended]) -> None:
    points, _ = blobs(0, Stream.POINTS, range(900), columns=4, centers=5, spread=0.5)
    centers = sweeps["1 rank"].result["centers"]
    labels = ((points[:, None] - centers[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert sweeps["1 rank"].metric("best_score")["value"] == pytest.approx(silhouette_score(points, labels))


def test_the_bic_finds_them_too(succeed: Start) -> None:
    found = succeed("kmeans_sweep", 2, *POINTS, *SWEEP, "--criterion=bic")
    assert found.metric("best_clusters")["value"] == 5


def test_each_group_has_all_points_where_they_count_for_each_rank(succeed: Start) -> None:
    """The program itself compares the best fit of a group with one of all ranks."""
    each = ("--points=300", "--per_rank=true", "--columns=4", "--centers=5", "--spread=0.5", "--block=64")
    alone = succeed("kmeans_sweep", 1, "--points=600", *each[2:], *SWEEP).result["table"]
    assert (succeed("kmeans_sweep", 2, *each, *SWEEP).result["table"][:, :3] == alone[:, :3]).all()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--least_clusters=9", "--most_clusters=8"), "least_clusters=9 is more than most_clusters=8"),
        (("--points=7",), "20 clusters of 7 point(s): lower most_clusters"),
    ],
)
def test_what_cannot_be_swept_is_refused(refuse: Callable[..., str], words: tuple[str, ...], says: str) -> None:
    assert says in refuse("kmeans_sweep", 2, *words)


def test_the_score_of_points_that_are_all_equal_is_the_worst(succeed: Start) -> None:
    flat = ("--points=60", "--centers=1", "--spread=0", "--most_clusters=4", "--block=8")
    assert succeed("kmeans_sweep", 2, *flat).metric("best_score")["value"] == -1


def test_the_imbalance_is_that_of_the_busiest_group(sweeps: dict[str, Ended]) -> None:
    assert sweeps["1 rank"].metric("imbalance")["value"] == pytest.approx(1)
    assert np.isfinite(sweeps["4"].metric("imbalance")["value"])
    assert sweeps["4"].metric("imbalance")["value"] >= 1
