"""VGGs for small images; see ``models.vgg``."""

from __future__ import annotations

from typing import Any

from hidl_workloads.hyparflow.models.vgg import vgg
from hidl_workloads.parameters import HyparflowVgg as Parameters


def make(parameters: Parameters) -> Any:
    """The Keras model."""
    return vgg(int(parameters.depth), parameters.image_size)


if __name__ == "__main__":
    from hidl_workloads.hyparflow.program import main

    main("hyparflow-vgg", Parameters, make)
