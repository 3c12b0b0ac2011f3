"""What a plan lets a training compute on, the program accepts, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args, get_type_hints

import pytest

from hidl_cli.errors import HidlError
from hidl_cli.launch.allocation import Asked
from hidl_cli.plan.devices import choose_device
from hidl_cli.plan.load import load_workload
from hidl_cli.site.load import load_site
from hidl_workloads.gpus import DEVICE
from hidl_workloads.parameters import Resnet50
from hidl_workloads.training import strategy

HINTS = get_type_hints(Resnet50)


def planned(values: Mapping[str, str], device: Literal["cpu", "gpu"]) -> bool:
    """Whether a plan is made."""
    site, workload = load_site("perlmutter"), load_workload("resnet50")
    try:
        choose_device(site, workload, [values], Asked(partition=None), device)
    except HidlError:
        return False
    return True


def accepted(values: Mapping[str, str], device: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the program goes on."""
    monkeypatch.setenv(DEVICE, device)
    try:
        strategy.check(Resnet50(**values))  # type: ignore[arg-type]
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("backend", get_args(HINTS["backend"]))
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_pytorch_trains_on_what_the_plan_says(
    backend: str, device: Literal["cpu", "gpu"], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"framework": "torch", "backend": backend}
    assert accepted(values, device, monkeypatch) is planned(values, device)


@pytest.mark.parametrize("backend", ["mpi4py", "horovod", "gloo"])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_tensorflow_trains_on_what_the_plan_says(
    backend: str, device: Literal["cpu", "gpu"], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"framework": "tensorflow", "backend": backend}
    assert accepted(values, device, monkeypatch) is planned(values, device)
