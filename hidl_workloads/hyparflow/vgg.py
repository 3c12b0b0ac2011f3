"""VGGs of CIFAR's shape; see ``models.vgg``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hidl_workloads.hyparflow.models.vgg import vgg
from hidl_workloads.hyparflow.parameters import Common


@dataclass(frozen=True)
class Parameters(Common):
    """``depth``: layers with weights."""

    depth: Literal["11", "13", "16", "19"] = "16"


def make(parameters: Parameters) -> Any:
    """The Keras model."""
    return vgg(int(parameters.depth))


if __name__ == "__main__":
    from hidl_workloads.hyparflow.program import main

    main("hyparflow-vgg", Parameters, make)
