"""PyTorch's gradients, averaged over the ranks while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.training.data_parallel import weights
from hidl_workloads.training.data_parallel.allreduce import Allreduce
from hidl_workloads.training.data_parallel.buckets import BUCKET_BYTES, Bucket, Gradient, plan
from hidl_workloads.training.data_parallel.choice import check, choose, require_the_same
from hidl_workloads.training.data_parallel.compression import Compression, Halves


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

        optimizer.zero_grad()
        loss.backward()
        averager.finish()
        optimizer.step()

    Each gradient is copied into its place in a flat buffer, and becomes a view of it.
    A full buffer is summed as it is, strictly in the planned order, so that all ranks start the same sums.

    - ``bucket_bytes``: the length of a buffer; ``compression``: what travels (see ``compression.py``)
    - ``average=False`` leaves the sums over the ranks as they are
    - ``accumulate``: backward passes before each ``finish``; their gradients are added, as torch does without us
    - ``share_memory=False`` sends everything through MPI, on one node too

    A parameter that got no gradient on this rank counts as zero; it holds its bucket, and those behind it, back until
    ``finish``. A gradient that was not cleared is added to, which is right for averages: all ranks have the same one.
    On one rank nothing is done at all. The constructor and ``close`` are collective. Raises ``TypeError`` for types
    that MPI does not have and ``ValueError`` for ranks that disagree.
    """

    def __init__(
        self,
        communicator: MPI.Comm,
        model: torch.nn.Module,
        bucket_bytes: int = BUCKET_BYTES,
        *,
        compression: Compression = "none",
        average: bool = True,
        accumulate: int = 1,
        share_memory: bool = True,
    ) -> None:
        check(compression, accumulate)
        self.started = False
        """Whether this rank's backward pass has given a gradient since the last ``finish``."""
        self._accumulate = accumulate
        self._next = 0
        named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        gradients = [Gradient(name, weight.numel(), str(weight.dtype).removeprefix("torch.")) for name, weight in named]
        buckets = plan(gradients, bucket_bytes) if communicator.size > 1 else ()
        require_the_same(communicator, gradients, bucket_bytes, compression, average, accumulate, share_memory)
        halves = None if compression == "none" else torch_halves(compression)
        share = 1 / communicator.size if average else 1.0
        self._allreduce = choose(communicator, buckets, halves, share=share, share_memory=share_memory)
        self._fillings = [
            _filling(self._allreduce, bucket, [named[index][1] for index in bucket.members], average)
            for bucket in buckets
        ]
        self._hooks = [
            weight.register_post_accumulate_grad_hook(self._hook(filling, position))
            for filling in self._fillings
            for position, weight in enumerate(filling.weights)
        ]

    def finish(self) -> None:
        """Wait until every gradient is the average over the ranks.

        Raises ``FloatingPointError``, on all ranks alike, where a compressed one is not finite; all are averaged then.
        """
        for filling in self._fillings[self._next :]:
            for position in sorted(filling.missing):
                filling.take(position)
        self._start_full()
        self._next = 0
        self.started = False
        for filling in self._fillings:
            filling.missing = set(range(len(filling.weights)))
            filling.passes = [0] * len(filling.weights)
        self._allreduce.finish()

    def close(self) -> None:
        """Let go of the model, and give the communicator and the buffers back; gradients are gone."""
        for hook in self._hooks:
            hook.remove()
        for filling in self._fillings:
            for weight in filling.weights:
                weight.grad = None
        self._fillings = []
        self._allreduce.close()

    def _hook(self, filling: _Filling, position: int) -> Callable[[torch.Tensor], None]:
        """Return what runs during the backward pass, as soon as one parameter's gradient is there."""

        def gradient_is_there(_: torch.Tensor) -> None:
            self.started = True
            filling.passes[position] += 1
            if filling.passes[position] > self._accumulate:
                raise RuntimeError(
                    f"a gradient was accumulated over more backward passes than accumulate={self._accumulate} allows: "
                    "average (finish, or the optimizer's step) between them, or allow more"
                )
            if filling.passes[position] == self._accumulate:
                filling.take(position)
                self._start_full()
            self._allreduce.progress()

        return gradient_is_there

    def _start_full(self) -> None:
        while self._next < len(self._fillings) and not self._fillings[self._next].missing:
            self._allreduce.start(self._fillings[self._next].buffer)
            self._next += 1


@dataclass
class _Filling:
    """A flat buffer, the parameters whose gradients it holds, and their views of it.

    ``missing`` are the positions that are not filled yet, ``passes`` how many backward passes reached each.
    """

    buffer: NDArray[Any]
    weights: Sequence[torch.Tensor]
    views: Sequence[torch.Tensor]
    missing: set[int]
    passes: list[int]
    averages: bool

    def take(self, position: int) -> None:
        """Put one gradient into its place, where it is not there already; none is zero."""
        weight, view = self.weights[position], self.views[position]
        if weight.grad is None:
            view.zero_()
        elif weight.grad.data_ptr() != view.data_ptr():
            view.copy_(weight.grad)
        elif not self.averages:
            raise RuntimeError(
                "a gradient that is summed over the ranks (average=False) was not cleared: its sum would be summed "
                "again; call zero_grad(set_to_none=True) before the backward pass"
            )
        weight.grad = view
        self.missing.discard(position)


def _filling(allreduce: Allreduce, bucket: Bucket, members: Sequence[torch.Tensor], averages: bool) -> _Filling:
    buffer = allreduce.buffer(bucket.size, bucket.dtype)
    flat = torch.from_numpy(buffer)
    # A gradient has its parameter's strides (think of channels_last): a view with others would be copied slowly.
    views = [
        flat.as_strided(weight.shape, weight.stride(), offset)
        for weight, offset in zip(members, bucket.offsets, strict=True)
    ]
    return _Filling(buffer, members, views, set(range(len(members))), [0] * len(members), averages)


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
