"""The trainings, as a user runs them: real ranks, each mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Hidl

LITTLE = ("batch=8", "micro_batches=2", "steps=2", "warmup=1", "costs=estimated", "depth=8", "timeline=true")


@pytest.fixture(scope="module")
def runs(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The steps of one run by mode."""
    from tests.conftest import _environment

    hidl = Hidl(_environment(tmp_path_factory.mktemp("runs"), stack_prefix("hyparflow").parents[4]))
    assigned = [word for each in LITTLE for word in ("--set", each)]
    words = ("run", "hyparflow-resnet", "--ranks-per-node", "2", "--repeat", "1", *assigned)
    run = hidl.json(*words, "--matrix", "mode=data,model")
    steps = {step["point"]["mode"]: step for step in run["steps"]}
    return run, steps
