"""Flat buffers in which PyTorch's gradients are summed, and the rows of sparse gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads import phases
from hidl_workloads.training.data_parallel.allreduce import Allreduce, Request
from hidl_workloads.training.data_parallel.buckets import Bucket
from hidl_workloads.training.data_parallel.compression import Halves
from hidl_workloads.training.data_parallel.torch_devices import is_host
from hidl_workloads.training.data_parallel.torch_lanes import Lane
from hidl_workloads.training.data_parallel.torch_state import Named

LaneOf = Callable[[torch.Tensor, NDArray[Any], NDArray[Any]], Lane]
"""Makes the way of a bucket: on the device, its buffer on the host, and the presence at the end of that."""
_BYTES_AT_ONCE = 2**20
"""Gradients of so many bytes are copied together: one call costs as much time as a copy of 10 KB."""
_BYTES_ALONE = 2**16
"""Gradients of so many bytes are handed over one by one: ``Allreduce.place`` copies only what other ranks add up."""


class Group:
    """Buffers that were planned together, and their sums."""

    def __init__(self, allreduce: Allreduce, fillings: Sequence[Filling]) -> None:
        self.fillings = fillings
        self.progress = allreduce.progress
        self._allreduce = allreduce
        self._next = 0

    def take(self, number: int, position: int) -> None:
        """Copy a gradient into its buffer, and start the sums of full buffers.

        A gradient that changes after its sum has begun is summed again at the end of the pass: see ``changed``.
        """
        if number >= self._next:
            self.fillings[number].take(position)
            self._start_full()

    def take_frozen(self) -> None:
        """Copy what parameters have that require no gradient: none will come."""
        for filling in self.fillings:
            for position, weight in enumerate(filling.weights):
                if not weight.requires_grad:
                    filling.take(position)
        self._start_full()

    def take_rest(self) -> None:
        """Copy all gradients that are not copied yet, and start all sums."""
        for filling in self.fillings[self._next :]:
            for position in sorted(filling.missing):
                filling.take(position)
            self._start_full()

    def fill(self) -> None:
        """Start all sums, of a failed pass, with what the buffers hold."""
        for filling in self.fillings[self._next :]:
            filling.missing.clear()
            if filling.lane is not None:
                filling.lane.touch()  # the averages of the last pass may not have been copied yet
        self._start_full()

    def finish(self, wait: Callable[[Request], object]) -> None:
        """Wait for the sums; see ``Allreduce.finish``."""
        self._allreduce.complete(wait)
        try:
            self._allreduce.finish()
        finally:
            self._next = 0
            for filling in self.fillings:
                filling.finish()

    def close(self) -> None:
        """Give the communicator and the buffers back."""
        for filling in self.fillings:
            if filling.lane is not None:
                filling.lane.close()
        self.fillings = []
        self._allreduce.close()

    def _start_full(self) -> None:
        while self._next < len(self.fillings) and not self.fillings[self._next].missing:
            filling = self.fillings[self._next]
            self._allreduce.start(filling.buffer, filling.steps())
            self._next += 1


Mark = tuple["weakref.ref[torch.Tensor]", int, int]
"""A gradient at some time: a weak reference, its address and its version.

It shows that another gradient, other memory or other values are in its place. Programs that clear gradients want their
memory back, which a reference would keep.
"""


@dataclass
class Changes:
    """Gradients that are not what was delivered.

    ``foreign``: the names of parameters whose gradient is none that was delivered; ``replaced``: of those, the ones
    that had one; ``rewritten``: gradients that were delivered and then changed in place, such as clipped ones, in the
    order of their places.
    """

    foreign: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    rewritten: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Filling:
    """A flat buffer, the parameters whose gradients are summed in it, and their places.

    Gradients are copied into the buffer and their sums out of it: what the user sees are tensors of the user's own,
    of any memory, which the averager only reads and writes when ``take`` and ``deliver`` are called.

    ``presence`` belongs to the end of the buffer: for each parameter, how many ranks have a gradient, times the share.
    ``missing`` are the positions that are not filled yet. Where the parameters are on a GPU, so are the views, and
    ``lane`` brings their sums into them; ``buffer`` is the host's part of it. On the host, ``allreduce`` reads the
    gradients and writes them, and the views tell the places alone. ``taken`` and ``delivered`` are the gradients as
    they were when they were copied last.
    """

    allreduce: Allreduce
    buffer: NDArray[Any]
    bucket: Bucket
    presence: NDArray[Any]
    names: Sequence[str]
    weights: Sequence[torch.Tensor]
    views: Sequence[torch.Tensor]
    averages: bool
    lane: Lane | None = None
    missing: set[int] = field(init=False)
    taken: list[Mark | None] = field(init=False)
    delivered: list[Mark | None] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(range(len(self.weights)))
        self.taken = [None] * len(self.weights)
        self.forget()
        self._waiting: list[int] = []
        self._waiting_bytes = 0
        # A list, because it is read for each gradient in each step, and attributes of tensors are slower.
        self._layouts = [(view.shape, view.stride(), view.numel() * view.element_size()) for view in self.views]
        self._type = self.views[0].dtype
        self._targets: list[torch.Tensor | None] = []
        self._sources: list[torch.Tensor | None] = []
        if self.lane is None:
            targets = self.allreduce.targets(self.buffer)
            self._targets = [self._within(targets, position) for position in range(len(self.views))]
            sources = self.allreduce.sources(self.buffer)
            self._sources = [self._within(sources, position) for position in range(len(self.views))]

    def forget(self) -> None:
        """Take no gradient for one that was delivered: they were cleared."""
        self.delivered = [None] * len(self.weights)

    def changes(self) -> Changes:
        """Return what has happened to the gradients since they were delivered."""
        changes = Changes()
        for position, (weight, delivered) in enumerate(zip(self.weights, self.delivered, strict=True)):
            grad = weight.grad
            if grad is None:
                continue
            if delivered is None or not _is_of(delivered, grad):
                changes.foreign.append(self.names[position])
                if delivered is not None:
                    changes.replaced.append(self.names[position])
            elif delivered[2] != grad._version:
                changes.rewritten.append(_flat(grad.detach(), self.views[position]))
        return changes

    def changed(self) -> bool:
        """Return True if a gradient is no longer what ``take`` copied: its sum is not that of the gradients."""
        for weight, taken in zip(self.weights, self.taken, strict=True):
            grad = weight.grad
            if (grad is None) != (taken is None):
                return True
            if taken is not None and not (_is_of(taken, grad) and taken[2] == grad._version):
                return True
        return False

    def take(self, position: int) -> None:
        """Have one gradient copied into its place, at the latest when the buffer is full."""
        self.missing.discard(position)
        self._waiting.append(position)
        self._waiting_bytes += self._layouts[position][2]
        if not self.missing or self._waiting_bytes > _BYTES_AT_ONCE or self.lane is not None:
            self._copy()

    def deliver(self) -> None:
        """Write the averages into the gradients; None where no rank has a gradient."""
        with phases.phase(phases.PACKING):
            self._deliver()

    def _deliver(self) -> None:
        presence = self.presence.tolist()
        sums, grads = [], []
        for position, weight in enumerate(self.weights):
            if not presence[position]:
                weight.grad, self.delivered[position] = None, None
                continue
            grad = weight.grad
            # Expanded tensors are not writable.
            if grad is None or (grad.stride() != self._layouts[position][1] and 0 in grad.stride()):
                grad = weight.grad = torch.empty_like(weight.detach())
            if self.lane is not None:
                grad.copy_(self.views[position])
            elif (total := self._sources[position]) is not None and grad.is_cpu:
                sums.append(total)
                grads.append(grad)
            else:
                self._collect(grad, self.views[position], self.bucket.offsets[position])
        if grads:
            torch._foreach_copy_(grads, sums)
        for position, weight in enumerate(self.weights):
            if presence[position]:
                self.delivered[position] = _mark(weight.grad)

    def steps(self) -> Iterator[Request]:
        """Begin to sum the buffer, which is full; return the requests."""
        if self.lane is not None:
            return self.lane.steps()
        self.allreduce.place(self.buffer, self.bucket.presence, self.presence)
        return self.allreduce.placed_steps(self.buffer)

    def finish(self) -> None:
        """Take what ranks have gradients from the sum, which is complete."""
        self._waiting, self._waiting_bytes = [], 0  # left by a failed pass
        self.missing = set(range(len(self.weights)))
        if self.lane is not None:
            self.lane.finish()
        else:
            self.allreduce.collect(self.buffer, self.bucket.presence, self.presence)

    def _collect(self, grad: torch.Tensor, view: torch.Tensor, begin: int) -> None:
        if _is_like(grad, view):
            self.allreduce.collect(self.buffer, begin, _flat(grad, view).numpy())
            return
        result = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype)
        self.allreduce.collect(self.buffer, begin, _flat(result, view).numpy())
        grad.copy_(result)

    def _copy(self) -> None:
        """Copy the gradients that wait into their places; none is zero."""
        with phases.phase(phases.PACKING):
            self._copy_waiting()

    def _copy_waiting(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        targets, grads = [], []
        for position in waiting:
            grad = self.weights[position].grad
            if grad is None:
                self.taken[position], self.presence[position] = None, 0
                self._clear(position)
                continue
            if (
                grad.dtype is not self._type
                or grad.layout is not torch.strided
                or grad.requires_grad
                or grad.shape != self._layouts[position][0]
            ):
                self._refuse(grad, position)
            delivered = self.delivered[position]
            if not self.averages and delivered is not None and _is_of(delivered, grad):
                raise RuntimeError(
                    "a gradient that is summed over the ranks (average=False) was not cleared and would be summed "
                    "again; call zero_grad(set_to_none=True) before the backward pass"
                )
            self.taken[position], self.presence[position] = _mark(grad), 1
            if self.lane is not None:
                self.views[position].copy_(grad)
                self.lane.touch()
            elif (target := self._targets[position]) is not None and grad.is_cpu and not self._is_kept(grad, position):
                targets.append(target)
                grads.append(grad)
            else:
                addend = _flat(grad, self.views[position])
                self.allreduce.place(self.buffer, self.bucket.offsets[position], addend.numpy())
        if grads:
            torch._foreach_copy_(targets, grads)

    def _is_kept(self, grad: torch.Tensor, position: int) -> bool:
        """Return True if ``allreduce`` may read the gradient where it is, which saves more than it costs."""
        return self._layouts[position][2] >= _BYTES_ALONE and _is_like(grad, self.views[position])

    def _clear(self, position: int) -> None:
        """Put zeros into the place of a gradient."""
        view = self.views[position]
        if self.lane is not None:
            view.zero_()
            self.lane.touch()
        else:
            addend = torch.zeros(view.numel(), dtype=view.dtype)
            self.allreduce.place(self.buffer, self.bucket.offsets[position], addend.numpy())

    def _within(self, arrays: Sequence[NDArray[Any]], position: int) -> torch.Tensor | None:
        """Return the place of a gradient in that of the ``arrays`` that has all of it; None if none has."""
        view, begin = self.views[position], self.bucket.offsets[position]
        for array in arrays:
            if begin >= 0 and begin + view.numel() <= len(array):
                flat = torch.from_numpy(array[begin : begin + view.numel()])
                return flat.as_strided(view.shape, view.stride())
            begin -= len(array)
        return None

    def _refuse(self, grad: torch.Tensor, position: int) -> None:
        name, view = self.names[position], self.views[position]
        if grad.layout != torch.strided:
            raise TypeError(f"the gradient of {name} is sparse, which is only supported for the model's embeddings")
        if grad.requires_grad:
            raise RuntimeError(
                f"the gradient of {name} is part of a graph (backward with create_graph=True), but a sum over ranks "
                "is not: use torch.autograd.grad(..., create_graph=True) for the inner derivative"
            )
        if grad.dtype != view.dtype:
            raise TypeError(
                f"the gradient of {name} is {grad.dtype}, but was {view.dtype} when the optimizer was wrapped: change "
                "the model's type before that"
            )
        raise RuntimeError(
            f"the gradient of {name} has the shape {tuple(grad.shape)}, but had {tuple(view.shape)} when the optimizer "
            "was wrapped: change the model's shapes before that"
        )


@dataclass
class Sparse:
    """A parameter whose gradient is sparse: ranks exchange the rows that they have."""

    name: str
    weight: torch.Tensor
    delivered: torch.Tensor | None = None

    def is_foreign(self) -> bool:
        """Return True if there is a gradient that was not averaged."""
        return self.weight.grad is not None and self.weight.grad is not self.delivered

    def delivered_values(self) -> list[torch.Tensor]:
        """Return the numbers of the average, flat, if the gradient is still that; ranks may have changed them."""
        total = self.delivered
        if total is None or self.weight.grad is not total:
            return []
        return [(total if total.layout == torch.strided else total._values()).detach().contiguous().view(-1)]

    def average(self, communicator: MPI.Comm, averages: bool) -> None:
        """Bring the gradient to the average, or the sum, over the ranks; collective.

        It becomes dense if it is dense on any rank, as that of an embedding whose weight is used elsewhere too.
        """
        own = None
        if self.weight.grad is not None:
            is_dense = self.weight.grad.layout == torch.strided
            grad = (self.weight.grad.to_sparse(1) if is_dense else self.weight.grad).coalesce()
            own = grad.indices().cpu().numpy(), grad.values().cpu().numpy(), is_dense
        everywhere = [rows for rows in communicator.allgather(own) if rows is not None]
        if not everywhere:
            return
        share = 1 / communicator.size if averages else 1.0
        indices = torch.from_numpy(np.concatenate([rows for rows, _, _ in everywhere], 1))
        values = torch.from_numpy(np.concatenate([values for _, values, _ in everywhere])) * share
        total = torch.sparse_coo_tensor(indices, values, self.weight.shape, check_invariants=True).coalesce()
        if any(is_dense for _, _, is_dense in everywhere):
            total = total.to_dense()
        self.weight.grad = total.to(self.weight.device)
        self.delivered = self.weight.grad


def filling_of(
    allreduce: Allreduce,
    bucket: Bucket,
    named: Sequence[Named],
    layouts: Sequence[tuple[int, ...]],
    *,
    averages: bool,
    lane_of: LaneOf | None = None,
) -> Filling:
    """Return the empty buffer of ``bucket``; ``lane_of`` makes its way if the parameters are on a GPU; collective.

    ``layouts``: for each of the ``named``, the strides of its place, the same on all ranks.
    """
    buffer = allreduce.buffer(bucket.size, bucket.dtype)
    names = [named[index][0] for index in bucket.members]
    members = [named[index][1] for index in bucket.members]
    flat, lane, presence = torch.from_numpy(buffer), None, np.zeros(len(members), bucket.dtype)
    if lane_of is not None:
        presence = buffer[bucket.presence :]
        flat = torch.zeros(bucket.presence, dtype=members[0].dtype, device=members[0].device)
        lane = lane_of(flat, buffer, presence)
    views = [
        flat.as_strided(named[index][1].shape, layouts[index], offset)
        for index, offset in zip(bucket.members, bucket.offsets, strict=True)
    ]
    return Filling(allreduce, buffer, bucket, presence, names, members, views, averages, lane)


def layout_of(weight: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of memory without gaps that is ordered as that of ``weight``, and fast to copy from it."""
    return tuple(torch.empty_like(weight.detach(), device="meta").stride())


def _is_like(grad: torch.Tensor, view: torch.Tensor) -> bool:
    """Return True if the elements of both have the same order in memory, that of the host."""
    strides = zip(grad.shape, grad.stride(), view.stride(), strict=True)
    return is_host(grad.device) and all(size == 1 or one == other for size, one, other in strides)


def _flat(grad: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Return the elements of ``grad`` in the order of ``view``: itself, or a copy of it."""
    if not _is_like(grad, view):
        grad = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype).copy_(grad)
    return grad.detach().as_strided((grad.numel(),), (1,))


def _mark(grad: torch.Tensor) -> Mark:
    return weakref.ref(grad), _memory_of(grad), grad._version


def _is_of(mark: Mark, grad: torch.Tensor) -> bool:
    """Return True if ``grad`` is the gradient of ``mark``, with the same memory."""
    return mark[0]() is grad and mark[1] == _memory_of(grad)


def _memory_of(grad: torch.Tensor) -> int:
    """Return the address of a gradient, or 0 where it is of a kind that has none."""
    try:
        return int(grad.data_ptr())
    except RuntimeError:
        return 0


def torch_halves(name: str) -> Halves:
    """Return ``float16`` or ``bfloat16`` as torch converts them, with the processor's vector instructions."""
    kind = getattr(torch, name)

    def tensor(bits: NDArray[np.uint16]) -> torch.Tensor:
        return torch.from_numpy(bits.view(np.int16)).view(kind)

    def encode(source: NDArray[Any], target: NDArray[Any]) -> None:
        tensor(target).copy_(torch.from_numpy(source))

    def decode(source: NDArray[Any], target: NDArray[Any]) -> None:
        torch.from_numpy(target).copy_(tensor(source))

    return Halves(name, encode, decode)
