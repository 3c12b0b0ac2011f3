"""What `hidl run --estimate` tells beside the cost, where the workload has a module that knows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.launch.placement import Placement
from hidl_cli.runs.forecast import Figure, read_forecast
from tests.conftest import Hidl

pytestmark = pytest.mark.real

PLACEMENTS = [Placement(nodes, 1, nodes, 1, bind=True) for nodes in (1, 2)]
EXPECTED = {"figures": [{"name": "step_time", "value": 0.5, "unit": "s"}]}
DOCUMENT = {
    "schema": "hidl.forecast/1",
    "expected": [EXPECTED, {"problem": "too many"}],
    "assumptions": {"network": "none"},
    "known_errors": ["10 %"],
}

#: A module that says how long a step of its program takes: a second, shared by the ranks.
TELLS = """
import json, os, sys
asked = json.loads(os.environ["HIDL_PLACEMENTS"])
if "--seconds=0" in sys.argv:
    sys.exit("no step takes 0 s")
expected = [
    {"figures": [{"name": "time", "value": 1 / placement["ranks"], "unit": "s"}]} for placement in asked["placements"]
]
document = {"schema": "hidl.forecast/1", "expected": expected, "known_errors": [],
            "assumptions": {"program": sys.argv[1], "words": " ".join(sys.argv[2:])}}
with open(os.environ["HIDL_FORECAST"], "w") as file:
    json.dump(document, file)
"""


def test_a_forecast_has_figures_or_a_problem_for_each_placement() -> None:
    one, two = read_forecast(dict(DOCUMENT), PLACEMENTS).expected
    assert one.figures == (Figure("step_time", 0.5, "s"),)
    assert two.problem == "too many"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "hidl.metrics/1"}, "not a document with schema hidl.forecast/1"),
        ({"expected": [EXPECTED]}, "expected 2 placements, got 1"),
        ({"expected": [{"figures": [{"name": "step_time"}]}, {}]}, r"2 value\(s\) do not match schema"),
    ],
)
def test_what_is_not_a_forecast_for_these_placements_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_forecast(DOCUMENT | change, PLACEMENTS)


@pytest.fixture
def telling(hidl_with: Callable[..., Hidl], tmp_path: Path) -> Hidl:
    """hidl with the stack mpi and a workload whose estimate is ``TELLS``."""
    hidl = hidl_with("mpi")
    (tmp_path / "tells_times.py").write_text(TELLS)
    hidl.environment["PYTHONPATH"] += f":{tmp_path}"
    hidl.add_workload(
        "told",
        "toy.py",
        program={"module": "hidl_workloads.mpi_sanity"},
        parameters={"seconds": {"type": "int", "default": 1}},
        metrics={"time": {"unit": "s", "better": "lower"}},
        scaling={"metric": "time", "kind": "strong", "target": 0.5},
        estimate="tells_times",
    )
    return hidl


def test_the_module_is_asked_once_about_all_sizes_and_runs_nothing(telling: Hidl) -> None:
    document = telling.json("run", "told", "--scale", "1,2", "--estimate")
    (told,) = document["forecasts"]
    assert [step["metrics"][0]["value"] for step in told["steps"]] == [1, 0.5]
    assert told["assumptions"] == {"program": "hidl_workloads.mpi_sanity", "words": "--seconds=1"}
    assert not telling.runs.exists()


def test_each_point_of_a_matrix_has_a_forecast_of_its_own(telling: Hidl) -> None:
    document = telling.json("run", "told", "--matrix", "seconds=1,2", "--estimate")
    assert [told["point"] for told in document["forecasts"]] == [{"seconds": 1}, {"seconds": 2}]


def test_people_read_a_table_with_the_assumptions_below(telling: Hidl) -> None:
    printed = telling("run", "told", "--ranks-per-node", "2", "--estimate").stdout
    assert " ".join(printed.partition("expected:")[2].split()) == (
        "time nodes ranks (s) 1 2 0.5 assumptions: program: hidl_workloads.mpi_sanity words: --seconds=1"
    )


def test_where_the_module_refuses_its_last_words_are_the_reason(telling: Hidl) -> None:
    completed = telling("run", "told", "--set", "seconds=0", "--estimate")
    assert completed.returncode == 1
    assert "told cannot be estimated: no step takes 0 s" in completed.stderr


def test_the_module_imports_nothing_of_the_directory_that_hidl_is_called_in(telling: Hidl, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "json.py").write_text("raise SystemExit('imported')")
    command = [Path(sys.executable).with_name("hidl"), "run", "told", "--estimate"]
    ended = subprocess.run(command, cwd=here, env=telling.environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "seconds=1" in ended.stdout


def test_no_speed_is_predicted_for_gpus(hidl: Hidl) -> None:
    completed = hidl("run", "hyparflow-resnet", "--site", "pitzer", "--account", "any", "--estimate", "--json")
    assert json.loads(completed.stdout)["forecasts"] == []
    assert "only available for CPUs (--device cpu)" in completed.stderr


def test_without_the_stack_the_cost_alone_is_reported(hidl: Hidl) -> None:
    completed = hidl("run", "hyparflow-resnet", "--estimate", "--json")
    assert json.loads(completed.stdout)["forecasts"] == []
    assert "hidl install hyparflow" in completed.stderr
