"""Numba's device arrays as OMB's buffers, on Numba's simulator of CUDA: it has the interface, and no device."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.waiting import patience
from tests.workloads.ranks import python_environment

WRITES_AND_READS = """
import json

import numpy as np

from hidl_workloads.omb import buffers

buffer = buffers.allocate("numba", 64)
buffer.write(np.arange(16, dtype="i4"))
whole = buffer.read(64).view("i4").tolist()
buffer.write(np.array([7, 8], "u1"), 5)
print(json.dumps([type(buffer.memory).__module__, whole, buffer.read(4, 4).tolist()]))
"""


@pytest.fixture(scope="module")
def numba(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Python, and a directory with Numba for it."""
    python, place = stack_prefix("mpi") / "bin" / "python", tmp_path_factory.mktemp("numba")
    words = [find_uv_bin(), "pip", "install", "--quiet", "--target", place, "--python", python]
    subprocess.run([*words, "numba"], check=True)
    return python, place


def test_what_is_written_to_a_device_array_is_read_from_it(numba: tuple[Path, Path]) -> None:
    python, place = numba
    environment = python_environment()
    environment |= {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": f"{environment['PYTHONPATH']}:{place}"}
    words = [python, "-c", WRITES_AND_READS]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    kind, whole, part = json.loads(done.stdout)
    assert kind.startswith("numba.cuda.simulator")
    assert whole == list(range(16))
    assert part == [1, 7, 8, 0]
