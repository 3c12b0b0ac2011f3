"""PyTorch's gradients, averaged over the ranks while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.data_parallel import weights
from hidl_workloads.data_parallel.allreduce import Allreduce
from hidl_workloads.data_parallel.buckets import Bucket, Gradient, plan


def broadcast(communicator: MPI.Comm, model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0's ``model``."""
    tensors = [tensor.detach() for tensor in model.state_dict().values()]
    contiguous = [tensor.contiguous() for tensor in tensors]  # the tensor itself, where it is so already
    weights.broadcast(communicator, [tensor.numpy() for tensor in contiguous])
    for tensor, received in zip(tensors, contiguous, strict=True):
        tensor.copy_(received)


def named_weights(model: torch.nn.Module) -> Iterable[tuple[str, NDArray[Any]]]:
    """Yield every trainable parameter's name and value, as a view, in the model's order."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            yield name, weight.detach().numpy()


class GradientAverager:
    """Averages the gradients of ``model`` over ``communicator``; the backward pass starts it, ``finish`` ends it.

    ::

        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        averager.finish()
        optimizer.step()

    Each gradient is copied, divided by the number of ranks, into its place in a flat buffer, and becomes a view of it.
    A full buffer goes to MPI as it is, strictly in the planned order, so that all ranks start the same sums.
    A parameter that got no gradient on this rank counts as zero; it holds its bucket, and those behind it, back until
    ``finish``. Gradients are not accumulated over backward passes: that is a ``RuntimeError``. On one rank nothing is
    done at all. The constructor and ``close`` are collective.
    """

    def __init__(self, communicator: MPI.Comm, model: torch.nn.Module, bucket_bytes: int) -> None:
        self._share = 1 / communicator.size
        self._next = 0
        self._allreduce = Allreduce(communicator)
        self._fillings = _fillings(model, bucket_bytes) if communicator.size > 1 else []
        for filling in self._fillings:
            for position, weight in enumerate(filling.weights):
                weight.register_post_accumulate_grad_hook(self._hook(filling, position))

    def finish(self) -> None:
        """Wait until every gradient is the average over the ranks."""
        for filling in self._fillings[self._next :]:
            filling.take_zeros()
        self._start_full()
        self._allreduce.finish()
        self._next = 0
        for filling in self._fillings:
            filling.missing = set(range(len(filling.weights)))

    def close(self) -> None:
        """Give the communicator back."""
        self._allreduce.close()

    def _hook(self, filling: _Filling, position: int) -> Callable[[torch.Tensor], None]:
        """Return what runs during the backward pass, as soon as one parameter's gradient is there."""

        def gradient_is_there(_: torch.Tensor) -> None:
            filling.take(position, self._share)
            self._start_full()
            self._allreduce.progress()

        return gradient_is_there

    def _start_full(self) -> None:
        while self._next < len(self._fillings) and not self._fillings[self._next].missing:
            self._allreduce.start(self._fillings[self._next].buffer)
            self._next += 1


@dataclass
class _Filling:
    """A flat buffer, the parameters whose gradients it holds, their views of it, and which of them are missing yet."""

    buffer: NDArray[Any]
    weights: Sequence[torch.Tensor]
    views: Sequence[torch.Tensor]
    missing: set[int]

    def take(self, position: int, share: float) -> None:
        """Put one gradient, times ``share``, into its place."""
        weight, view = self.weights[position], self.views[position]
        # A gradient that was not cleared is the view itself: the last average, with this pass's gradient added.
        if position not in self.missing or weight.grad.data_ptr() == view.data_ptr():
            raise RuntimeError(
                "a gradient was accumulated over two backward passes: call finish() and then "
                "zero_grad(set_to_none=True) between them"
            )
        torch.mul(weight.grad, share, out=view)
        weight.grad = view
        self.missing.discard(position)

    def take_zeros(self) -> None:
        """Put zeros where this rank's backward pass gave no gradient."""
        for position in self.missing:
            self.weights[position].grad = self.views[position].zero_()
        self.missing = set()


def _fillings(model: torch.nn.Module, bucket_bytes: int) -> list[_Filling]:
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    gradients = [Gradient(name, weight.numel(), str(weight.dtype).removeprefix("torch.")) for name, weight in named]
    return [_filling(bucket, [named[index][1] for index in bucket.members]) for bucket in plan(gradients, bucket_bytes)]


def _filling(bucket: Bucket, members: Sequence[torch.Tensor]) -> _Filling:
    flat = torch.zeros(bucket.size, dtype=getattr(torch, bucket.dtype))
    # A gradient has its parameter's strides (think of channels_last): a view with others would be copied slowly.
    views = [
        flat.as_strided(weight.shape, weight.stride(), offset)
        for weight, offset in zip(members, bucket.offsets, strict=True)
    ]
    return _Filling(flat.numpy(), members, views, set(range(len(members))))
