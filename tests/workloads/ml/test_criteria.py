"""What the best number of clusters is chosen by."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans

from hidl_workloads.ml.criteria import bic, sample_rows

pytestmark = pytest.mark.real


def blobs(centers: int) -> np.ndarray:
    random = np.random.default_rng(1)
    return np.concatenate([random.normal(20 * number, 1, (200, 2)) for number in range(centers)])


def scored(points: np.ndarray, clusters: int) -> float:
    fit = KMeans(clusters, n_init=10, random_state=0).fit(points)
    return bic(np.bincount(fit.labels_), fit.inertia_, points.shape[1])


def test_the_bic_is_highest_for_as_many_clusters_as_there_are() -> None:
    points = blobs(5)
    assert max(range(2, 10), key=lambda clusters: scored(points, clusters)) == 5


def test_the_bic_is_the_log_likelihood_less_half_the_parameters_times_the_logarithm_of_the_points() -> None:
    points, labels = np.array([[0.0], [2.0], [10.0], [12.0]]), np.array([0, 0, 1, 1])
    variance = 4 / (4 - 2)  # squared distances from 1 and 11, over the points that are free
    centers = np.array([[1.0], [11.0]])
    density = np.exp(-((points - centers[labels]) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    likelihood = float(np.log(0.5 * density).sum())
    assert bic(np.array([2, 2]), 4.0, 1) == pytest.approx(likelihood - 4 / 2 * np.log(4))


def test_a_clustering_that_leaves_no_variance_has_a_finite_figure() -> None:
    assert np.isfinite(bic(np.array([3, 0]), 0.0, 2))


def test_a_sample_has_each_row_once_and_all_where_there_are_few() -> None:
    assert sample_rows(5, 9, 0).tolist() == [0, 1, 2, 3, 4]
    assert len(set(sample_rows(1000, 100, 0).tolist())) == 100
    assert sample_rows(1000, 100, 0).tolist() == sorted(sample_rows(1000, 100, 0).tolist())
