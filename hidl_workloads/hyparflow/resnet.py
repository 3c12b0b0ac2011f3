"""ResNets of CIFAR's shape; see ``models.resnet``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hidl_workloads.arguments import number
from hidl_workloads.hyparflow.models.resnet import blocks, resnet
from hidl_workloads.hyparflow.parameters import Common


@dataclass(frozen=True)
class Parameters(Common):
    """``depth``: layers with weights, 6n+2 in ``version`` 1 and 9n+2 in version 2."""

    depth: int = number(20, least=8)
    version: Literal["1", "2"] = "1"

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a depth that there is not."""
        blocks(int(self.version), self.depth)


def make(parameters: Parameters) -> Any:
    """The Keras model."""
    return resnet(int(parameters.version), parameters.depth)


if __name__ == "__main__":
    from hidl_workloads.hyparflow.program import main

    main("hyparflow-resnet", Parameters, make)
