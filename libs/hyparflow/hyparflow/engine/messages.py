"""Tensors and gradients between stages.

A tensor goes directly from its producer to every stage that needs it, and a gradient returns from each. Receives are
posted in advance, into buffers that live as long as the engine; sends are started and completed between actions. The
gradients of a tensor are passed on in the order of the stages that they come from, so that their sum does not depend on
the order of arrival. Stages of the same rank exchange no messages.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.backends import Array, MessageMemory
from hyparflow.engine.world import wait
from hyparflow.schedules import Action, owner

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph
    from hyparflow.planning.plan import Plan
    from hyparflow.schedules import Action


_BOUNDARY = 64  # bytes: frameworks use memory with this alignment without a copy


class HostMemory:
    """A ``MessageMemory`` of NumPy arrays, aligned such that frameworks use them without a copy."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        size = math.prod(shape) * dtype.itemsize
        memory = np.empty(size + _BOUNDARY, np.uint8)
        skip = -memory.ctypes.data % _BOUNDARY
        return memory[skip : skip + size].view(dtype).reshape(shape)

    def first_rows(self, array: Array, rows: int | None) -> Array:
        return array[:rows]

    def to_mpi(self, array: Array) -> object:
        return np.asarray(array).reshape(-1).view(np.uint8)


class Inbox:
    """The receiving end of one link in one direction. Micro-batches arrive in the order in which they are used.

    All buffers are either posted or in use; returning one posts the next receive.
    """

    def __init__(self, comm: Any, source: int, tag: int, buffers: Sequence[Array], memory: MessageMemory) -> None:
        """Prepare to receive.

        Args:
            comm: The communicator.
            source: The rank that sends.
            tag: The tag of micro-batch 0; that of micro-batch i is ``tag + i``.
            buffers: Buffers of ``memory``.
            memory: The kind of memory.
        """
        self._receive = comm.Irecv
        self._memory = memory
        self._source = source
        self._tag = tag
        self._free = list(buffers)
        self._to_post: deque[int] = deque()
        self._posted: deque[tuple[int, Array, Any]] = deque()

    def begin(self, order: Sequence[int]) -> None:
        """Expect these micro-batches in this order, and post receives for the available buffers."""
        self._to_post.extend(order)
        self._post()

    def take(self, micro_batch: int) -> Array:
        """Wait for the next micro-batch, which must be this one. The caller owns its buffer until ``give_back``."""
        expected, buffer, request = self._posted.popleft()
        assert expected == micro_batch, (expected, micro_batch)
        wait(request)
        return buffer

    def give_back(self, buffer: Array) -> None:
        """Return a buffer, which may be overwritten."""
        self._free.append(buffer)
        self._post()

    def _post(self) -> None:
        while self._free and self._to_post:
            micro_batch, buffer = self._to_post.popleft(), self._free.pop()
            request = self._receive(self._memory.to_mpi(buffer), self._source, self._tag + micro_batch)
            self._posted.append((micro_batch, buffer, request))


class Outbox:
    """Sends in progress. Their buffers are kept until they are complete."""

    def __init__(self, memory: MessageMemory) -> None:
        self._memory = memory
        self._requests: list[Any] = []
        self._buffers: list[Array] = []

    def send(self, comm: Any, array: Array, destination: int, tag: int) -> None:
        """Start a send.

        Args:
            comm: The communicator.
            array: The array to send.
            destination: The rank in the communicator.
            tag: The tag of the message.
        """
        view = self._memory.to_mpi(array)
        self._requests.append(comm.Isend(view, destination, tag))
        self._buffers.append((array, view))

    def progress(self) -> None:
        """Release the buffers of completed sends."""
        if self._requests:
            self._requests[0].Testsome(self._requests)
            left = [pair for pair in zip(self._requests, self._buffers, strict=True) if pair[0]]
            self._requests = [request for request, _ in left]
            self._buffers = [buffer for _, buffer in left]

    def finish(self) -> None:
        """Wait for all sends."""
        for request in self._requests:
            wait(request)
        self._requests, self._buffers = [], []


class Exchange:
    """All messages of one rank's stages."""

    def __init__(
        self,
        links: Sequence[Link],
        actions: tuple[Action, ...],
        *,
        partition: int,
        partitions: int,
        forward: Sequence[Any],
        backward: Sequence[Any],
        memory: MessageMemory,
    ) -> None:
        """Prepare the links of one partition.

        Args:
            links: All links of the plan.
            actions: This partition's actions in a training step.
            partition: This rank's partition.
            partitions: Number of partitions.
            forward: A communicator per pipeline for tensors.
            backward: A communicator per pipeline for gradients.
            memory: The memory for received tensors.
        """
        self._memory = memory
        self._partition = partition
        self._partitions = partitions
        self._comms = {"forward": forward, "backward": backward}
        self._micro_batches = 1 + max((action.micro_batch for action in actions), default=0)
        self._orders: dict[tuple[str, int, int], list[int]] = {}
        for action in actions:
            self._orders.setdefault((action.kind, action.stage, action.pipeline), []).append(action.micro_batch)
        self._incoming: dict[int, list[Link]] = {}
        self._outgoing: dict[int, list[Link]] = {}
        for link in links:
            self._outgoing.setdefault(link.producer, []).append(link)
            self._incoming.setdefault(link.consumer, []).append(link)
        self._inboxes: dict[tuple[str, int, int], Inbox] = {}  # by direction, link, pipeline
        self._outbox = Outbox(memory)
        self._rows: int | None = None
        # Arrays between stages of this rank, by direction, link and micro-batch.
        self._local: dict[tuple[str, int, int], Array] = {}
        self._held: dict[tuple[int, int, int], list[tuple[Inbox, Array]]] = {}  # by stage, pipeline, micro-batch
        for (stage, pipeline), most in most_in_flight(actions).items():
            window = min(most + 1, len(self._orders["forward", stage, pipeline]))
            self._make_inboxes(stage, pipeline, window)

    def _make_inboxes(self, stage: int, pipeline: int, window: int) -> None:
        """Create the inboxes for the tensors that a stage needs and for the gradients that return to it."""
        for direction, links in (("forward", self._incoming), ("backward", self._outgoing)):
            for link in links.get(stage, ()):
                other = link.producer if direction == "forward" else link.consumer
                source = owner(other, pipeline, self._partitions)
                if source != self._partition and (direction == "forward" or link.differentiable):
                    tag = link.number * self._micro_batches
                    comm = self._comms[direction][pipeline]
                    # The buffer of a gradient is free after one use, so two suffice: one in use, one for the next.
                    depth = window if direction == "forward" else min(2, window)
                    buffers = [self._memory.empty(link.shape, link.dtype) for _ in range(depth)]
                    inbox = Inbox(comm, source, tag, buffers, self._memory)
                    self._inboxes[direction, link.number, pipeline] = inbox

    def begin(self, *, training: bool, rows: int | None = None) -> None:
        """Post the first receives of a step, with micro-batches of ``rows`` samples (None: the size of the links)."""
        self._rows = rows
        for (kind, stage, pipeline), order in self._orders.items():
            if kind == "forward" or training:
                for link in (self._incoming if kind == "forward" else self._outgoing).get(stage, ()):
                    if inbox := self._inboxes.get((kind, link.number, pipeline)):
                        inbox.begin(order)

    def tensors(self, action: Action) -> dict[int, Array]:
        """Wait for the tensors that a forward pass needs from other stages; return tensor -> array.

        The caller owns the arrays until ``release(action)``.
        """
        found = {}
        for link in self._incoming.get(action.stage, ()):
            inbox = self._inboxes.get(("forward", link.number, action.pipeline))
            if inbox is None:
                found[link.tensor] = self._local.pop(("forward", link.number, action.micro_batch))
            else:
                buffer = inbox.take(action.micro_batch)
                found[link.tensor] = self._memory.first_rows(buffer, self._rows)
                self._held.setdefault(_key(action), []).append((inbox, buffer))
        return found

    def release(self, action: Action) -> None:
        """Release the tensors and gradients that this action's stage received for its micro-batch."""
        for inbox, buffer in self._held.pop(_key(action), ()):
            inbox.give_back(buffer)

    def send_tensors(self, action: Action, tensors: Mapping[int, Array]) -> None:
        """Start to send the results of a forward pass to the stages that need them."""
        self._send("forward", action, tensors, self._outgoing.get(action.stage, ()))

    def gradients(self, action: Action) -> dict[int, list[Array]]:
        """Wait for the gradients that a backward pass needs; return tensor -> gradients in the order of its consumers.

        The caller owns the arrays until ``release(action)``.
        """
        found: dict[int, list[Array]] = {}
        for link in self._outgoing.get(action.stage, ()):  # in order of tensor, then consumer
            if not link.differentiable:
                continue
            inbox = self._inboxes.get(("backward", link.number, action.pipeline))
            if inbox is None:
                array = self._local.pop(("backward", link.number, action.micro_batch))
            else:
                buffer = inbox.take(action.micro_batch)
                array = self._memory.first_rows(buffer, self._rows)
                self._held.setdefault(_key(action), []).append((inbox, buffer))
            found.setdefault(link.tensor, []).append(array)
        return found

    def send_gradients(self, action: Action, gradients: Mapping[int, Array]) -> None:
        """Start to send the gradients of received tensors to their producers."""
        links = [link for link in self._incoming.get(action.stage, ()) if link.differentiable]
        self._send("backward", action, gradients, links)

    def _send(self, direction: str, action: Action, arrays: Mapping[int, Array], links: Sequence[Link]) -> None:
        comm = self._comms[direction][action.pipeline]
        for link in links:
            other = link.consumer if direction == "forward" else link.producer
            destination = owner(other, action.pipeline, self._partitions)
            if destination == self._partition:
                self._local[direction, link.number, action.micro_batch] = arrays[link.tensor]
            else:
                tag = link.number * self._micro_batches + action.micro_batch
                self._outbox.send(comm, arrays[link.tensor], destination, tag)

    def progress(self) -> None:
        """Complete finished sends."""
        self._outbox.progress()

    def finish(self) -> None:
        """Wait until everything has been sent."""
        self._outbox.finish()


def _key(action: Action) -> tuple[int, int, int]:
    return action.stage, action.pipeline, action.micro_batch


@dataclass(frozen=True)
class Link:
    """The direct way of a tensor from its producer to one consumer; its gradient returns the same way.

    ``number`` is the same on every rank. ``shape`` is that of one micro-batch. Only tensors of floating point have a
    gradient.
    """

    number: int
    tensor: int
    producer: int
    consumer: int
    shape: tuple[int, ...]
    dtype: np.dtype
    differentiable: bool


def links_of(plan: Plan, graph: Graph) -> tuple[Link, ...]:
    """Return all links of a plan, in order of tensor, then consumer."""
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
    """Return NumPy's dtype for a Keras dtype; bfloat16 is from ml_dtypes, which comes with TensorFlow."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def most_in_flight(actions: tuple[Action, ...]) -> Mapping[tuple[int, int], int]:
    """Return (stage, pipeline) -> the maximum number of micro-batches between their forward and backward passes."""
    held: dict[tuple[int, int], int] = {}
    most: dict[tuple[int, int], int] = {}
    for action in actions:
        key = (action.stage, action.pipeline)
        held[key] = held.get(key, 0) + (1 if action.kind == "forward" else -1)
        most[key] = max(most.get(key, 0), held[key])
    return most
