"""ResNets for small images; see ``models.resnet``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hidl_workloads.hyparflow.models.resnet import blocks, resnet
from hidl_workloads.parameters import HyparflowResnet


@dataclass(frozen=True)
class Parameters(HyparflowResnet):
    """The recipe's parameters."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a depth that there is not."""
        blocks(int(self.version), self.depth)


def make(parameters: Parameters) -> Any:
    """The Keras model."""
    return resnet(int(parameters.version), parameters.depth, parameters.image_size)


if __name__ == "__main__":
    from hidl_workloads.hyparflow.program import main

    main("hyparflow-resnet", Parameters, make)
