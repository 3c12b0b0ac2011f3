"""What a program yields is held against what its workload promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.errors import MetricMissing
from hidl_cli.plan.workload import Metric
from hidl_cli.runs.metrics import describe_unequal_ranks, read_metrics

PROMISED = {
    "rate": Metric(unit="images/s", better="higher"),
    "checksum": Metric(unit="sha256", equal_on_all_ranks=True),
    "loss": Metric(unit="nats", required=False),
}
RATE = {"name": "rate", "value": 2.0, "unit": "images/s", "samples": [1.0, 3.0]}
CHECKSUM = {"name": "checksum", "value": "ab", "unit": "sha256", "samples": ["ab", "ab"]}


def write(path: Path, *metrics: dict[str, Any], size: int = 2) -> Path:
    file = path / "metrics.json"
    file.write_text(json.dumps({"schema": "hidl.metrics/1", "world": {"size": size}, "metrics": list(metrics)}))
    return file


def test_metrics_come_by_name(tmp_path: Path) -> None:
    metrics = read_metrics(write(tmp_path, RATE, CHECKSUM), PROMISED, ranks=2)
    assert metrics["rate"] == {"value": 2.0, "unit": "images/s", "samples": [1.0, 3.0]}
    assert describe_unequal_ranks(metrics, PROMISED) is None


@pytest.mark.parametrize("key", ["sizes", "ranks"])
def test_what_the_samples_belong_to_is_kept(tmp_path: Path, key: str) -> None:
    metrics = read_metrics(write(tmp_path, RATE | {key: [0, 1]}, CHECKSUM), PROMISED, ranks=2)
    assert metrics["rate"][key] == [0, 1]


def test_samples_can_belong_to_pairs_of_nodes(tmp_path: Path) -> None:
    pairs = [["node1", "node2"], ["node1", "node3"]]
    assert read_metrics(write(tmp_path, RATE | {"pairs": pairs}, CHECKSUM), PROMISED, ranks=2)["rate"]["pairs"] == pairs


@pytest.mark.parametrize(
    "pairs",
    [
        [["node1", "node2"]],  # one for two samples
        [["node1", "node2"], ["node2", "node1"]],
        [["node1", "node2"], ["node3", "node3"]],
        [["node1", "node2"], ["node3"]],
        [["node1", "node2"], "node3"],
        "node1 node2",
    ],
)
def test_pairs_are_two_names_for_each_sample_each_once(tmp_path: Path, pairs: Any) -> None:
    with pytest.raises(MetricMissing, match="`pairs` must have one unique pair of names for each sample"):
        read_metrics(write(tmp_path, RATE | {"pairs": pairs}, CHECKSUM), PROMISED, ranks=2)


def test_no_file_is_a_missing_metric_unless_nothing_is_promised(tmp_path: Path) -> None:
    with pytest.raises(MetricMissing, match="wrote no metrics"):
        read_metrics(tmp_path / "metrics.json", PROMISED, ranks=2)
    assert read_metrics(tmp_path / "metrics.json", {}, ranks=2) == {}


@pytest.mark.parametrize(
    ("metrics", "size", "told"),
    [
        ([CHECKSUM], 2, "metric rate is not in"),
        ([RATE, CHECKSUM], 1, "from 1 rank"),
        ([RATE | {"unit": "images"}, CHECKSUM], 2, "has unit 'images', expected 'images/s'"),
        ([RATE | {"value": float("nan")}, CHECKSUM], 2, "not a finite number"),
        ([RATE | {"value": True}, CHECKSUM], 2, "not a finite number"),
        ([RATE, CHECKSUM | {"samples": [float("nan")] * 2}], 2, "not a finite number"),
        ([RATE | {"samples": [1.0, float("inf")]}, CHECKSUM], 2, "not a finite number"),
        ([RATE | {"samples": 3}, CHECKSUM], 2, "`samples` must be a list"),
        ([RATE, CHECKSUM | {"samples": ["ab"]}], 2, "not one for each of 2 rank"),
        ([RATE, {"name": "checksum"}], 2, "must be a list of objects"),
        ([RATE | {"sizes": [1]}, CHECKSUM], 2, "`sizes` must have one unique whole number for each sample"),
        ([RATE | {"sizes": [8, 8]}, CHECKSUM], 2, "`sizes` must have one unique whole number for each sample"),
        ([RATE | {"sizes": [1, 2.5]}, CHECKSUM], 2, "`sizes` must have one unique whole number for each sample"),
        ([RATE | {"sizes": None}, CHECKSUM], 2, "`sizes` must have one unique whole number for each sample"),
        ([RATE | {"ranks": [0, -1]}, CHECKSUM], 2, "`ranks` must have one unique whole number for each sample"),
        ([RATE | {"ranks": [0, True]}, CHECKSUM], 2, "`ranks` must have one unique whole number for each sample"),
    ],
)
def test_whatever_does_not_keep_the_promise_is_reported(
    tmp_path: Path, metrics: list[dict[str, Any]], size: int, told: str
) -> None:
    with pytest.raises(MetricMissing, match=told):
        read_metrics(write(tmp_path, *metrics, size=size), PROMISED, ranks=2)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema": "hidl.metrics/2"}', "\xff", '{"schema": "hidl.metrics/1"}']
)
def test_what_is_not_a_metrics_document_is_reported(tmp_path: Path, content: str) -> None:
    file = tmp_path / "metrics.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(MetricMissing):
        read_metrics(file, PROMISED, ranks=2)


def test_a_rank_that_differs_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, RATE, CHECKSUM | {"samples": ["ab", "ab", "cd"]}, size=3)
    sentence = describe_unequal_ranks(read_metrics(file, PROMISED, ranks=3), PROMISED)
    assert sentence is not None
    assert "rank 2: cd" in sentence
