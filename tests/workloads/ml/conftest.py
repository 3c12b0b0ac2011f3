"""Starts the machine-learning programs on real ranks, and reads what they leave."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hidl_cli.process import Completed
from tests.workloads import ranks


@dataclass(frozen=True)
class Ended:
    """A program that has ended: what it said, its metrics document and its result; both empty where there is none."""

    completed: Completed
    document: dict[str, Any]
    result: dict[str, Any]

    def metric(self, name: str) -> dict[str, Any]:
        (found,) = (metric for metric in self.document["metrics"] if metric["name"] == name)
        return dict(found)


Start = Callable[..., Ended]


@pytest.fixture(scope="session")
def start(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Start:
    """``start("kmeans", 2, "--clusters=3")``: that module on 2 ranks of stack mpi, one timed step, no warm-up.

    ``around``: a test program that the module's name is given to.
    """
    prefix = stack_prefix("mpi")

    def run(module: str, size: int, *words: str, around: str | None = None) -> Ended:
        place = tmp_path_factory.mktemp(module)
        metrics, result = place / "metrics.json", place / "result.npz"
        full = f"hidl_workloads.ml.{module}"
        program = ("hidl_workloads.world", *([around] if around else []), full)
        told = ("--steps=1", "--warmup=0", f"--result={result}", *words)
        completed = ranks.run(prefix, size, "-m", *program, *told, timeout=300, HIDL_METRICS=str(metrics))
        return Ended(
            completed,
            json.loads(metrics.read_text()) if metrics.exists() else {},
            dict(np.load(result)) if result.exists() else {},
        )

    return run


@pytest.fixture(scope="session")
def succeed(start: Start) -> Start:
    """As ``start``, and the program must end well."""

    def run(*words: Any, **options: Any) -> Ended:
        ended = start(*words, **options)
        assert ended.completed.status == 0, ended.completed.stderr
        return ended

    return run


@pytest.fixture(scope="session")
def refuse(start: Start) -> Callable[..., str]:
    """As ``start``, and the program must end with status 1, without metrics: what it said, which it says once."""

    def run(*words: Any, **options: Any) -> str:
        ended = start(*words, **options)
        assert ended.completed.status == 1
        assert not ended.document
        name = words[0].replace("_", "-")
        said = [line for line in ended.completed.stderr.splitlines() if line.startswith(f"{name}: ")]
        assert len(said) == 1, ended.completed.stderr
        assert "Traceback" not in ended.completed.stderr
        return said[0]

    return run
