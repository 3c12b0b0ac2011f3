"""What Python costs, from a run of both suites."""

from __future__ import annotations

from typing import Any

from hidl_cli.analysis.ranking import Row, overheads


def step(suite: str, latencies: dict[int, float], *, metric: str = "latency", **parameters: Any) -> dict[str, Any]:
    found = {"value": 1.0, "unit": "us", "samples": list(latencies.values()), "sizes": list(latencies)}
    return {"parameters": {"suite": suite, **parameters}, "metrics": {metric: found}}


def test_each_size_has_the_medians_of_its_repetitions_and_their_difference() -> None:
    rounds = [(0.2, 0.5), (0.3, 0.6), (9.0, 0.7)]
    (found,) = overheads(
        [s for c, p in rounds for s in (step("c", {8: c, 16: c + 1}), step("python", {8: p, 16: p + 1}))]
    )
    assert found.rows == (Row(8, 0.3, 0.6), Row(16, 1.3, 1.6))
    assert [round(row.difference, 9) for row in found.rows] == [0.3, 0.3]


def test_a_difference_is_reported_in_terms_of_c() -> None:
    assert (Row(8, 0.5, 0.75).relative, Row(8, 0.0, 0.75).relative) == (0.5, None)


def test_sizes_and_metrics_that_one_suite_lacks_are_left_out() -> None:
    steps = [step("c", {8: 0.2, 16: 0.3}), step("python", {8: 0.5, 32: 0.6}), step("python", {8: 1.0}, metric="other")]
    assert [(found.metric, [row.size for row in found.rows]) for found in overheads(steps)] == [("latency", [8])]


def test_a_metric_without_sizes_has_one_row() -> None:
    steps = [
        {"parameters": {"suite": suite}, "metrics": {"latency": {"value": value, "unit": "us", "samples": [value]}}}
        for suite, value in (("c", 0.5), ("python", 0.8))
    ]
    assert overheads(steps)[0].rows == (Row(None, 0.5, 0.8),)


def test_other_points_of_the_matrix_are_kept_apart() -> None:
    steps = [step(suite, {8: 1.0}, validation=v) for v in (True, False) for suite in ("c", "python")]
    assert [found.point for found in overheads(steps)] == ["validation=True", "validation=False"]


def test_a_run_of_one_suite_has_no_overhead() -> None:
    assert overheads([step("c", {8: 1.0}), {"metrics": {}}]) == ()
