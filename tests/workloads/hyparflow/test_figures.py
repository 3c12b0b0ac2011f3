"""What a training reports."""

from __future__ import annotations

import pytest

from hidl_workloads.hyparflow.figures import Predicted, RankMeasurements, combined, figures

MEASURED = RankMeasurements(
    images=100,
    seconds=[0.5, 0.4, 0.6],
    first_step=9.0,
    bubbles=[0.1, 0.3],
    peaks=[500.0, 700.0],
    checksums=["a", "a"],
    loss=2.3,
)
FOUND = {metric.name: metric for metric in figures(MEASURED, Predicted(0.45, [0.2, 0.2], 8))}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("images_per_second", 200.0),  # all replicas' images in the median step
        ("step_time", 0.5),
        ("bubble", 0.2),  # mean over the ranks
        ("peak_memory", 700.0),  # the rank that holds the most
        ("predicted_step_time", 0.45),
        ("micro_batches", 8),
    ],
)
def test_a_figure_is_made_of_what_the_ranks_saw(name: str, value: float) -> None:
    assert FOUND[name].value == pytest.approx(value)


def test_the_checksum_has_a_sample_for_each_rank() -> None:
    assert FOUND["weight_checksum"].samples == ["a", "a"]


def test_ranks_of_a_replica_see_one_model_made_of_all_their_variables() -> None:
    hashes = [{"a": "1"}, {"b": "2", "c": "3"}]
    assert combined(hashes, 0) == combined(hashes, 1) == [("a", "1"), ("b", "2"), ("c", "3")]


def test_ranks_whose_copies_of_a_variable_differ_see_different_models() -> None:
    hashes = [{"shared": "1"}, {"shared": "2"}, {"other": "3"}]
    assert combined(hashes, 0) != combined(hashes, 1)
