"""The metrics document, and the intervals of what people read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_workloads import intervals
from hidl_workloads.metrics import write_json
from tests.workloads import ranks


def test_rank_0_writes_one_document_about_the_whole_world(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    target = tmp_path / "metrics.json"
    completed = ranks.run(stack_prefix("mpi"), 3, "-m", "tells", HIDL_METRICS=str(target))
    assert completed.status == 0, completed.stderr
    document = json.loads(target.read_text())
    assert document["schema"] == "hidl.metrics/1"
    assert document["program"] == "tells"
    assert document["world"]["size"] == len(document["world"]["hosts"]) == 3
    assert document["versions"].keys() == {"python", "mpi4py", "mpi_library"}
    assert document["metrics"] == [{"name": "one", "value": 1.0, "unit": "1", "samples": [1.0]}]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]


def test_without_the_variable_no_document_is_written(stack_prefix: Callable[[str], Path]) -> None:
    assert ranks.run(stack_prefix("mpi"), 1, "-m", "tells").status == 0


@pytest.mark.parametrize("text", ["a\nb\t\"c\" 'd' \\", "\u00e9\u4e2d\U0001f600\u2028", "\udcff not UTF-8", ""])
def test_any_text_is_read_back_letter_by_letter(tmp_path: Path, text: str) -> None:
    write_json(tmp_path / "m.json", {"note": text})
    assert json.loads((tmp_path / "m.json").read_text(encoding="utf-8")) == {"note": text}


def test_a_figure_that_is_not_finite_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "m.json", {"value": math.nan})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (11, 2.20099), (100, 1.98397)]
)
def test_students_t_agrees_with_the_tables(degrees: int, quantile: float) -> None:
    assert intervals.student_t(degrees) == pytest.approx(quantile, rel=4e-4)


def test_the_interval_of_a_known_sample() -> None:
    samples = [10.0, 12.0, 14.0]  # s = 2, so t(0.975, 2) * 2 / sqrt(3)
    assert intervals.mean(samples) == 12
    assert intervals.half_width(samples) == pytest.approx(4.30265 * 2 / math.sqrt(3), rel=1e-4)


def test_one_sample_has_no_finite_interval() -> None:
    assert intervals.half_width([3.0]) == math.inf
