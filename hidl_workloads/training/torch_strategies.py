"""Strategies that average PyTorch's gradients: data_parallel over MPI, Horovod, or those of ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from mpi4py import MPI

from hidl_workloads.parameters import Training
from hidl_workloads.refusal import Refused
from hidl_workloads.training import horovod_gpu, horovod_world, strategy, torch_parallel
from hidl_workloads.training.data_parallel.gpu_path import Path
from hidl_workloads.training.data_parallel.torch_devices import is_host
from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer


class Strategy(Protocol):
    """A model and an optimizer that train together with those of all ranks, from equal weights.

    ``model`` is what computes; ``optimizer`` updates, when every gradient is the average; ``versions`` are those of the
    libraries that were added. ``path`` is the way of gradients on a GPU: ``gpu-aware``, ``staged`` or ``nccl``, and
    ``path_reason`` why it was chosen; empty where there is none.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    versions: dict[str, str]
    path: str
    path_reason: str

    def batch(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch that this rank trains on, of those of all ranks; collective."""

    def train(self, inputs: torch.Tensor, targets: torch.Tensor, loss: torch_parallel.Loss) -> float:
        """Compute the gradients of the batch, and return its loss; collective."""

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Yield the name and value of every weight of the whole model; collective."""

    def close(self) -> None:
        """Release communicators and buffers; collective."""


def make(
    communicator: MPI.Comm,
    model: torch.nn.Module,
    optimizer: Callable[..., torch.optim.Optimizer],
    parameters: Training,
) -> Strategy:
    """Return the strategy of the backend that the parameters name; collective.

    Args:
        communicator: of all ranks.
        model: the network; without memory for its weights if these are divided among ranks.
        optimizer: makes the optimizer of the parameters that it gets.
        parameters: of the workload.

    Raises:
        Refused: on all ranks, if the backend cannot serve the model's device.
    """
    makers: dict[str, Callable[..., Strategy]] = {"mpi4py": _OverMPI, "horovod": _Horovod}
    maker: Callable[..., Strategy] = makers.get(
        parameters.backend, torch_parallel.MAKERS[strategy.parallel(parameters)]
    )
    return maker(communicator, model, optimizer, parameters)


class _Whole:
    """Base of the strategies outside ``torch.distributed``: every rank has the whole model."""

    model: torch.nn.Module
    _parts: int

    def batch(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return inputs, targets

    def train(self, inputs: torch.Tensor, targets: torch.Tensor, loss: torch_parallel.Loss) -> float:
        return torch_parallel.accumulate(self.model, inputs, targets, self._parts, loss)

    def weights(self) -> Iterable[tuple[str, Any]]:
        return ((name, weight.detach()) for name, weight in self.model.named_parameters())


class _OverMPI(_Whole):
    """See ``Strategy``; ``hidl_workloads.training.data_parallel``."""

    def __init__(
        self,
        communicator: MPI.Comm,
        model: torch.nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        parameters: Training,
    ) -> None:
        self.model = model
        self.versions: dict[str, str] = {}
        self._parts = strategy.parts(parameters, 1)
        try:
            self.optimizer = DistributedOptimizer(
                optimizer(model.parameters()),
                model,
                communicator,
                bucket_bytes=int(parameters.bucket_mib * 2**20),
                compression=parameters.compression,
                statistics="local",  # as for the other backends
                gpu_buffers=parameters.gpu_buffers,
                accumulate=self._parts,
            )
        except ValueError as error:
            raise Refused(str(error)) from error
        path: Path | None = self.optimizer.path
        self.path: str = path.name if path else ""
        self.path_reason: str = path.reason if path else ""

    def close(self) -> None:
        self.optimizer.close()


class _Horovod(_Whole):
    """See ``Strategy``; the gradients travel while the backward pass runs, and the update waits for them."""

    def __init__(
        self,
        communicator: MPI.Comm,
        model: torch.nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        parameters: Training,
    ) -> None:
        import horovod
        import horovod.torch as hvd

        horovod_world.configure(
            cycle_time_ms=parameters.cycle_time_ms, fusion_mib=parameters.fusion_mib, timeline=parameters.timeline
        )
        horovod_world.init(hvd, communicator, "mpi")
        device = next(model.parameters()).device
        self.path: str = "" if is_host(device) else horovod_gpu.require_path(communicator, device)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        self.model, self.versions = model, {"horovod": horovod.__version__}
        self.path_reason = "by Horovod" if self.path else ""
        self._parts = strategy.parts(parameters, 1)
        self.optimizer = hvd.DistributedOptimizer(
            optimizer(model.parameters()),
            named_parameters=model.named_parameters(),
            compression=hvd.Compression.fp16 if parameters.compression == "float16" else hvd.Compression.none,
            backward_passes_per_step=self._parts,
        )
        self._hvd = hvd

    def close(self) -> None:
        self._hvd.shutdown()
