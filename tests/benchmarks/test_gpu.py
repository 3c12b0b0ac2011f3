"""`make gpu`: its trials on processors, its document and pages, and the table of what GPUs have seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import page
from hidl_cli import process
from hidl_cli.process import Completed
from tests.waiting import patience
from tests.workloads import ranks


def trials(prefix: Path, output: Path, *words: str) -> Completed:
    command = [prefix / "bin" / "python", "-m", "benchmarks.gpu", "--device", "cpu", "--output", output, *words]
    return process.run(command, env=ranks.python_environment(), timeout=patience(240), check=False)


@pytest.mark.deep
def test_trials_on_processors_are_right(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    prefix, output = stack_prefix("pytorch"), tmp_path / "gpu.json"
    only = "which|hook|tsvd, staged|omb-latency, torch|no GPU"
    done = trials(prefix, output, "--only", only, "--mpiexec", str(prefix / "bin" / "mpiexec"))
    assert done.status == 0, done.stderr
    found = json.loads(output.read_text())["trials"]
    assert set(found) == {"which way", "a hook that raises", "no GPU is visible", "omb-latency, torch", "tsvd, staged"}
    assert found["a hook that raises"]["outcome"]["passed"]
    assert found["tsvd, staged"]["difference"] == 0
    assert found["no GPU is visible"]["absent"] == "on GPUs alone"
    assert output.with_suffix(".md").read_text() in done.stdout


def test_a_trial_that_fails_is_told_and_the_others_go_on(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    done = trials(stack_prefix("pytorch"), output, "--only", "copies|tsvd, staged", "--mpiexec", "false")
    assert done.status == 1
    found = json.loads(output.read_text())["trials"]
    assert [each["failed"] for each in found.values()] == ["status 1", "status 1"]
    assert done.stdout.count("**failed**: status 1") == 2


def test_what_another_environment_lacked_is_tried_in_this_one(
    stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    output = tmp_path / "gpu.json"
    before = {"copies": {"absent": "no torch"}, "tsvd, staged": {"difference": 0.0, "trial_seconds": 1.0}}
    output.write_text(json.dumps({"trials": before}))
    words = ("--missing", "--only", "copies|tsvd, staged", "--mpiexec", "false")
    assert trials(stack_prefix("pytorch"), output, *words).status == 1
    found = json.loads(output.read_text())["trials"]
    assert found["copies"]["failed"] == "status 1"
    assert found["tsvd, staged"] == before["tsvd, staged"]


def test_readme_and_documentation_hold_what_the_documents_say() -> None:
    assert list(page.RESULTS.glob("*.json"))
    for file, text in page.published().items():
        assert file.read_text() == text, "python -m benchmarks.gpu.page writes it"


ROW = "the same, `gpu_buffers=direct`"


@pytest.mark.parametrize(
    ("worst", "cell"),
    [
        ({}, "right"),
        ({"failed": "status 139"}, "**failed**"),
        ({"refused": "MPI reads no GPU memory"}, "refused: not GPU-aware"),
        ({"absent": "no cupy"}, "right, as far as tried"),
    ],
)
def test_a_cell_is_as_good_as_the_worst_of_its_trials(worst: dict[str, Any], cell: str) -> None:
    found: dict[str, Any] = {name: {} for name in page.SEEN[ROW]}
    found["knn, direct"] = worst
    assert f"| {ROW} | {cell} |\n" in page.table([{"trials": found}])
    assert f"| {ROW} | not seen |\n" in page.table([{"trials": {}}])
