"""The links of a plan: each tensor that goes from the stage that makes it to a stage that needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph
    from hyparflow.planning.plan import Plan
    from hyparflow.schedules import Action


@dataclass(frozen=True)
class Link:
    """One tensor's way from its producer to one consumer, straight; its gradient comes back the same way.

    ``number`` is the same on every rank. ``shape`` is that of one micro-batch. A tensor that is not of floating point
    has no gradient that would come back.
    """

    number: int
    tensor: int
    producer: int
    consumer: int
    shape: tuple[int, ...]
    dtype: np.dtype
    differentiable: bool


def links_of(plan: Plan, graph: Graph) -> tuple[Link, ...]:
    """All links of a plan, in order of tensor, then consumer."""
    crossing = sorted(
        (tensor, stage.index, consumer)
        for stage in plan.stages
        for tensor, consumers in stage.sends.items()
        for consumer in consumers
    )
    return tuple(
        Link(
            number,
            tensor,
            producer,
            consumer,
            (plan.micro_batch_size, *graph.tensors[tensor].shape),
            host_dtype(graph.tensors[tensor].dtype),
            graph.tensors[tensor].differentiable,
        )
        for number, (tensor, producer, consumer) in enumerate(crossing)
    )


def host_dtype(name: str) -> np.dtype:
    """NumPy's dtype of a Keras dtype's name; bfloat16 is ml_dtypes', which comes with TensorFlow."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def most_in_flight(actions: tuple[Action, ...]) -> Mapping[tuple[int, int], int]:
    """(stage, pipeline) -> the most micro-batches whose forward is done and whose backward is not, in these actions."""
    held: dict[tuple[int, int], int] = {}
    most: dict[tuple[int, int], int] = {}
    for action in actions:
        key = (action.stage, action.pipeline)
        held[key] = held.get(key, 0) + (1 if action.kind == "forward" else -1)
        most[key] = max(most.get(key, 0), held[key])
    return most
