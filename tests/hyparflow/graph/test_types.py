"""A graph's plain values, without Keras."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hyparflow.graph.types import Tensor, bytes_of

from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float32", 4), ("float16", 2), ("bfloat16", 2), ("float64", 8), ("int64", 8), ("uint8", 1), ("bool", 1)],
)
def test_bytes_of_one_element(dtype: str, expected: int) -> None:
    assert bytes_of(dtype) == expected


def test_bytes_of_a_sample() -> None:
    assert Tensor(0, "x", (4, 4, 3), "float32", None, ()).bytes_per_sample == 192


@pytest.mark.parametrize(
    ("producer", "dtype", "expected"), [(3, "bfloat16", True), (3, "int32", False), (None, "float32", False)]
)
def test_gradients_go_back_for_floats_that_a_node_made(producer: int | None, dtype: str, expected: bool) -> None:
    assert Tensor(0, "x", (1,), dtype, producer, ()).differentiable is expected


def test_importing_it_imports_neither_keras_nor_tensorflow() -> None:
    program = (
        "import sys; sys.path.insert(0, 'libs/hyparflow'); import hyparflow.graph, hyparflow.backends; "
        "sys.exit(bool({'keras', 'tensorflow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False).returncode == 0
