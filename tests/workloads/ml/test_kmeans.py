"""k-means on real ranks, against scikit-learn from the same start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans

from hidl_workloads.ml.streams import Stream, blobs
from tests.workloads.ml.conftest import Ended, Start

pytestmark = pytest.mark.exact

CLUSTERS, SIZES = 12, (1, 2, 4)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cloud far from the origin, without clusters: many iterations, and every digit counts."""
    path = tmp_path_factory.mktemp("data") / "points.npy"
    np.save(path, np.random.default_rng(0).normal(size=(3000, 5)) + 1e6)
    return path


@pytest.fixture(scope="session")
def fits(succeed: Start, data: Path) -> dict[int, Ended]:
    return {size: succeed("kmeans", size, f"--data={data}", f"--clusters={CLUSTERS}", "--block=64") for size in SIZES}


def saved(path: Path, values: Any) -> Path:
    np.save(path, values)
    return path


def scikit_learns(points: np.ndarray, start: np.ndarray) -> KMeans:
    return KMeans(len(start), init=start, n_init=1, algorithm="lloyd", max_iter=300, tol=1e-4).fit(points)


def assert_is_scikit_learns(found: dict[str, Any], points: np.ndarray) -> None:
    expected = scikit_learns(points, found["start"])
    assert found["inertia"] == pytest.approx(expected.inertia_, rel=1e-10)
    assert found["iterations"] == expected.n_iter_
    assert (found["labels"] == expected.labels_).all()
    assert np.allclose(found["centers"], expected.cluster_centers_, rtol=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_it_is_what_scikit_learn_finds_from_the_same_start(fits: dict[int, Ended], data: Path, size: int) -> None:
    found = fits[size].result
    assert found["iterations"] > 20
    assert_is_scikit_learns(found, np.load(data))


@pytest.mark.parametrize("size", SIZES[1:])
def test_any_number_of_ranks_finds_the_same_bit_for_bit(fits: dict[int, Ended], size: int) -> None:
    alone, together = fits[1].result, fits[size].result
    assert all(alone[name].tobytes() == together[name].tobytes() for name in alone)
    assert fits[1].metric("result_checksum")["value"] == fits[size].metric("result_checksum")["value"]


def test_the_start_consists_of_different_points_of_the_data(fits: dict[int, Ended], data: Path) -> None:
    start, points = fits[1].result["start"], np.load(data)
    distances = np.abs(points[:, None] - start[None]).max(axis=2)
    assert len(set(distances.argmin(axis=0).tolist())) == CLUSTERS
    assert distances.min(axis=0).max() < 1e-9  # the mean is 1e6, and it was taken away and added again


def test_kmeans_plus_plus_takes_one_point_of_each_of_clouds_that_lie_apart(succeed: Start) -> None:
    """Two of the same cloud have a chance of some 1e-5, uniform choice one of nearly 1."""
    cloud = ("--points=2000", "--columns=8", "--centers=8", "--clusters=8", "--spread=0.01", "--block=100")
    found = succeed("kmeans", 2, *cloud).result
    _, labels = blobs(0, Stream.POINTS, range(2000), columns=8, centers=8, spread=0.01)
    assert len(set(zip(labels.tolist(), found["labels"].tolist(), strict=True))) == 8


@pytest.mark.parametrize("size", SIZES)
def test_an_empty_cluster_gets_the_farthest_point(succeed: Start, tmp_path: Path, size: int) -> None:
    random = np.random.default_rng(3)
    points = random.normal(size=(200, 2))
    given = np.concatenate((points[:3], [[1e3, 1e3], [-1e3, 0]]))
    words = (f"--data={saved(tmp_path / 'data.npy', points)}", f"--start={saved(tmp_path / 'start.npy', given)}")

    found = succeed("kmeans", size, *words, "--clusters=5", "--block=16").result

    expected = scikit_learns(points, given)
    assert np.bincount(found["labels"], minlength=5).min() > 0
    assert found["inertia"] == pytest.approx(expected.inertia_, rel=1e-10)


def test_fewer_points_than_ranks_will_do(succeed: Start, tmp_path: Path) -> None:
    points = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    data = saved(tmp_path / "data.npy", points)
    found = succeed("kmeans", 4, f"--data={data}", "--clusters=2", "--block=1").result
    assert_is_scikit_learns(found, points.astype(np.float64))


def test_points_that_are_all_equal_are_one_cluster_of_no_inertia(succeed: Start, tmp_path: Path) -> None:
    data = saved(tmp_path / "data.npy", np.full((50, 3), 7.25))
    found = succeed("kmeans", 2, f"--data={data}", "--clusters=3", "--block=8").result
    assert found["inertia"] == 0
    assert (found["centers"] == 7.25).all()
    assert set(found["labels"]) == {0}


def test_numbers_just_small_enough_to_be_squared_are_clustered(succeed: Start, tmp_path: Path) -> None:
    points = np.random.default_rng(0).uniform(-9e139, 9e139, (60, 3))
    data = saved(tmp_path / "data.npy", points)
    found = succeed("kmeans", 2, f"--data={data}", "--clusters=4", "--block=8").result
    assert found["inertia"] == pytest.approx(scikit_learns(points, found["start"]).inertia_, rel=1e-10)


@pytest.mark.parametrize("scale", [1e-170, 1e170, 1e-310])
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_two_clusters_are_found_whatever_their_size(
    succeed: Start, tmp_path: Path, scale: float, offset: float
) -> None:
    points = np.concatenate((np.full((20, 2), [offset, 1.0]), np.full((20, 2), [offset, 3.0])))
    points[:, 1] += np.random.default_rng(0).uniform(-0.1, 0.1, 40)
    expected = scikit_learns(points, points[[0, 20]])
    points[:, 1] *= scale
    data = saved(tmp_path / "data.npy", points)

    found = succeed("kmeans", 2, f"--data={data}", "--clusters=2", "--block=8").result

    assert sorted(set(found["labels"][:20])) != sorted(set(found["labels"][20:]))
    assert len(set(found["labels"])) == 2
    centers = np.sort(found["centers"][:, 1])
    assert np.allclose(centers / scale, np.sort(expected.cluster_centers_[:, 1]), rtol=1e-12)
    assert np.allclose(found["centers"][:, 0], offset, rtol=0, atol=1e-12 * max(scale, 1.0))
    assert found["inertia"] == {1e170: np.finfo(float).max}.get(scale, 0.0)


def test_more_clusters_than_distinct_points_leave_some_empty(succeed: Start, tmp_path: Path) -> None:
    data = saved(tmp_path / "data.npy", np.repeat([[0.0, 1.0], [4.0, 2.0], [8.0, -8.0]], 10, axis=0))
    ended = succeed("kmeans", 2, f"--data={data}", "--clusters=7", "--block=4")
    assert ended.result["inertia"] == 0
    assert sorted(ended.metric("smallest_cluster")["samples"]) == [0, 0, 0, 0, 10, 10, 10]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_without_distance_is_refused_with_its_row(
    refuse: Callable[..., str], tmp_path: Path, bad: Any
) -> None:
    points = np.zeros((40, 3))
    points[33, 1] = bad  # in the second rank's half
    said = refuse("kmeans", 2, f"--data={saved(tmp_path / 'data.npy', points)}", "--clusters=2", "--block=4")
    assert "the first one in row 33" in said
    assert "(rank 1)" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--points=3", "--clusters=4"), "4 clusters of 3 point(s): choose no more clusters than points"),
        (("--data=/no/such.npy",), "data=/no/such.npy cannot be read: "),
        (("--clusters=0",), "clusters must be 1 or more, not 0"),
        (("--clutsers=4",), "unknown argument '--clutsers=4'; valid"),
        (("--device=gpu",), "unknown argument '--device=gpu'; valid"),
        (("--points=9", "--clusters=2", "--result=/no/such/place.npz"), "the result cannot be written"),
    ],
)
def test_what_cannot_be_done_is_refused(refuse: Callable[..., str], words: tuple[str, ...], says: str) -> None:
    assert says in refuse("kmeans", 2, *words)


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("data", np.zeros(5), "contains float64 (5,), not a matrix of real numbers"),
        ("data", np.zeros((5, 2), dtype=complex), "contains complex128 (5, 2), not a matrix of real numbers"),
        ("data", np.zeros((0, 2)), "contains float64 (0, 2), not a matrix of real numbers"),
        ("start", np.zeros((3, 2)), "has 3 x 2 numbers, not 2 x 16"),
        ("start", np.full((2, 16), np.nan), "contains NaN or infinity"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    refuse: Callable[..., str], tmp_path: Path, name: str, values: Any, says: str
) -> None:
    said = refuse("kmeans", 1, "--points=100", "--clusters=2", f"--{name}={saved(tmp_path / 'file.npy', values)}")
    assert says in said


def test_each_rank_gets_so_many_points_where_they_count_for_each(succeed: Start) -> None:
    ended = succeed("kmeans", 2, "--points=300", "--per_rank=true", "--clusters=3", "--block=50")
    assert len(ended.result["labels"]) == 600
    time, rate = ended.metric("fit_time")["value"], ended.metric("point_rate")["value"]
    assert rate == pytest.approx(600 * ended.result["iterations"] / time)
