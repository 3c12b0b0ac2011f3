"""The models are those that were published, and the estimates of their training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli import process
from hidl_cli.runs.forecast import Forecast, read_forecast
from tests.waiting import patience
from tests.workloads import ranks

pytestmark = pytest.mark.deep

PROGRAM = Path(__file__).parent / "programs" / "builds_models.py"


@pytest.fixture(scope="module")
def found(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("models") / "models.json"
    python = stack_prefix("hyparflow") / "bin" / "python"
    process.run([python, PROGRAM, file], env=ranks.python_environment(), timeout=patience(300))
    return json.loads(file.read_text())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet20v1", 274_442),  # these three as Keras' example cifar10_resnet counts them
        ("resnet20v2", 574_090),
        ("resnet56v1", 861_770),
        ("vgg16", 14_714_688 + 2 * (512 * 512 + 512) + 5130),  # Keras' VGG16 without its top; the top for 32 x 32
    ],
)
def test_a_model_has_as_many_parameters_as_the_published_one(found: Any, name: str, parameters: int) -> None:
    assert found[name]["parameters"] == parameters


@pytest.mark.parametrize("name", ["resnet20v1", "vgg16", "amoebanet3x8"])
def test_a_model_maps_images_to_ten_logits(found: Any, name: str) -> None:
    assert (found[name]["name"], found[name]["output"]) == (name, [None, 10])


def test_an_amoebanets_tensors_have_many_consumers(found: Any) -> None:
    assert found["amoebanet3x8"]["most_consumers"] >= 4


def test_a_model_is_built_in_the_precision_that_was_asked_for(found: Any) -> None:
    assert found["resnet20v1 in float64"]["dtype"] == "float64"


def test_a_model_takes_no_memory_before_it_is_cut(found: Any) -> None:
    assert found["resnet56v1"]["in_memory"] == 0


def told(found: Any, mode: str) -> Forecast:
    return read_forecast(found[mode], [None] * 3)  # type: ignore[list-item]


def efficiencies(forecast: Forecast) -> list[float]:
    return [figure.value for each in forecast.expected for figure in each.figures if figure.name == "efficiency"]


def test_efficiency_is_measured_against_one_node_and_falls_with_more(found: Any) -> None:
    one, few, many = efficiencies(told(found, "data"))
    assert pytest.approx(one) == 1
    assert one > few > many > 0.5


def test_a_replica_in_partitions_trains_on_any_number_of_nodes(found: Any) -> None:
    assert len(efficiencies(told(found, "hybrid"))) == 3


def test_more_partitions_than_the_model_has_nodes_are_a_problem_of_that_size(found: Any) -> None:
    few, _, many = told(found, "model").expected
    assert [figure.name for figure in few.figures] == ["images_per_second", "step_time", "bubble"]
    assert "too few for 1024 partitions" in str(many.problem)


def test_an_estimate_says_what_it_assumes(found: Any) -> None:
    assert told(found, "data").assumptions["network"].startswith("InfiniBand HDR: 24.2 GB/s")
