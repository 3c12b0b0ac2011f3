"""docs/how-to/train-data-parallel.md: a model of one's own, one file and one recipe outside of hidl, in hidl's loop."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Hidl

PAGE = REPOSITORY / "docs" / "how-to" / "train-data-parallel.md"


def _example(first_line: str) -> str:
    """Return the code block of the page that begins with a comment, ``first_line``."""
    return next(block for block in re.findall(r"```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL) if first_line in block)


@pytest.mark.deep
def test_the_example_of_the_page_trains_on_two_ranks(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = hidl_with("pytorch")
    program = tmp_path / "perceptron.py"
    program.write_text(_example("# perceptron.py"))
    recipe = hidl.config / "workloads" / "perceptron.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(_example("workloads/perceptron.yaml").replace("/home/me/perceptron.py", str(program)))
    completed = hidl("run", "perceptron", "--ranks-per-node", "2", "--set", "width=64", "--set", "backend=gloo")
    assert completed.returncode == 0, completed.stderr
    (file,) = hidl.runs.glob("*/steps/1/metrics.json")
    document = json.loads(file.read_text())
    assert document["parameters"]["width"] == 64
    assert {"samples_per_second", "weight_checksum"} <= {metric["name"] for metric in document["metrics"]}
