"""What a plan lets a training compute on, the program accepts, and nothing else."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import pytest

from hidl_cli.errors import HidlError
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.plan.checks import load_workload
from hidl_cli.plan.devices import choose_device
from hidl_cli.site.load import load_site
from hidl_workloads.gpus import DEVICE
from hidl_workloads.parameters import Resnet50
from hidl_workloads.training import strategy
from tests.conftest import REPOSITORY

HINTS = get_type_hints(Resnet50)


def planned(values: Mapping[str, str], device: Literal["cpu", "gpu"]) -> bool:
    """Whether a plan is made."""
    site, workload = load_site("perlmutter"), load_workload("resnet50")
    try:
        choose_device(site, workload, [values], AllocationOptions(partition=None), device)
    except HidlError:
        return False
    return True


def accepted(values: Mapping[str, Any], device: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the program goes on."""
    monkeypatch.setenv(DEVICE, device)
    try:
        strategy.check(Resnet50(**values))
    except ValueError:
        return False
    return True


FRAMEWORKS = [("torch", backend) for backend in get_args(HINTS["backend"])] + [
    ("tensorflow", backend) for backend in ("mpi4py", "horovod", "gloo")
]


@pytest.mark.parametrize(("framework", "backend"), FRAMEWORKS)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_program_trains_on_what_the_plan_says(
    framework: str, backend: str, device: Literal["cpu", "gpu"], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"framework": framework, "backend": backend}
    assert accepted(values, device, monkeypatch) is planned(values, device)


@pytest.mark.real
def test_the_memory_of_a_step_is_known_before_it(stack_prefix: Callable[[str], Path]) -> None:
    """The estimate never exceeds what is needed by more than rounding, and leaves the network as it was."""
    program = REPOSITORY / "tests" / "workloads" / "programs" / "torch_memory.py"
    python = stack_prefix("pytorch") / "bin" / "python"
    done = subprocess.run([python, program], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {name: each["untouched"] for name, each in found.items()} == {"resnet50": True, "gpt": True}
    assert all(0.9 <= each["ratio"] <= 1.02 for each in found.values()), found
    assert all(1 < each["doubled"] <= 2 for each in found.values()), found
