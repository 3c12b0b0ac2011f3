"""AmoebaNet-like networks for small images; see ``models.amoebanet``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hidl_workloads.hyparflow.models.amoebanet import amoebanet, cells_of_a_stack
from hidl_workloads.parameters import HyparflowAmoebanet


@dataclass(frozen=True)
class Parameters(HyparflowAmoebanet):
    """The recipe's parameters."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a depth that there is not."""
        cells_of_a_stack(self.depth)


def make(parameters: Parameters) -> Any:
    """The Keras model."""
    return amoebanet(parameters.depth, parameters.filters, parameters.image_size)


if __name__ == "__main__":
    from hidl_workloads.hyparflow.program import main

    main("hyparflow-amoebanet", Parameters, make)
