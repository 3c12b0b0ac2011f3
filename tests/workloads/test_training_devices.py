"""What a plan lets a training compute on, the program accepts, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
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
