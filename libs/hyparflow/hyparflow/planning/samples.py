"""Made-up micro-batches, for programs that run only to be timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph, Tensor
    from hyparflow.planning.stages import Stage


@dataclass(frozen=True)
class MicroBatch:
    """What a stage's passes are given: see ``hyparflow.backends.StageProgram``."""

    inputs: Mapping[int, Any]
    targets: Mapping[int, Any]
    returned: Mapping[int, list[Any]]


def micro_batch(model: Any, graph: Graph, stage: Stage, samples: int) -> MicroBatch:
    """One of so many samples for a stage."""
    inputs = {tensor: _filled(graph.tensors[tensor], samples) for tensor in stage.receives}
    returned = {
        tensor: [_filled(graph.tensors[tensor], samples) for _ in consumers]
        for tensor, consumers in stage.sends.items()
        if graph.tensors[tensor].differentiable
    }
    return MicroBatch(inputs, _targets(model, graph, stage, samples), returned)


def _filled(tensor: Tensor, samples: int) -> Any:
    """Values of a tensor: small numbers, for integers zeros, which every embedding knows."""
    shape = (samples, *tensor.shape)
    if "float" not in tensor.dtype or tensor.dtype == "bfloat16":
        return np.zeros(shape, "float32" if tensor.dtype == "bfloat16" else tensor.dtype)
    return np.random.default_rng(0).standard_normal(shape).astype(tensor.dtype)


def _targets(model: Any, graph: Graph, stage: Stage, samples: int) -> dict[int, Any]:
    """Something to compare a stage's outputs with, of the shape that its loss takes."""
    from hyparflow.backends import Target
    from hyparflow.backends.tensorflow.losses import compiled_losses

    if not stage.outputs:
        return {}
    found = {}
    for loss in compiled_losses(model):
        tensor = graph.tensors[graph.outputs[loss.output]]
        if tensor.index in stage.outputs:
            classes = _takes_classes(loss.function)
            shape = tensor.shape[:-1] if classes else tensor.shape
            found[loss.output] = Target(np.zeros((samples, *shape), "int32" if classes else "float32"))
    return found


def _takes_classes(loss: Any) -> bool:
    """Whether the targets of a Keras loss are numbers of classes, one fewer dimension than what is compared with them.

    A loss that was asked for by its name is a wrapped function.
    """
    return any("sparse" in getattr(each, "__name__", "").lower() for each in (type(loss), getattr(loss, "fn", None)))
