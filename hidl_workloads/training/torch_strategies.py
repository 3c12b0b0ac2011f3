"""Strategies that average PyTorch's gradients: data_parallel over MPI, Horovod, or PyTorch's DDP and FSDP2."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from mpi4py import MPI

from hidl_workloads import torch_device
from hidl_workloads.parameters import Training
from hidl_workloads.refusal import Refused
from hidl_workloads.training import horovod_gpu, horovod_world, strategy
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

    def close(self) -> None:
        """Release communicators and buffers; collective."""


def make(
    communicator: MPI.Comm, model: torch.nn.Module, optimizer: torch.optim.Optimizer, parameters: Training
) -> Strategy:
    """Return the strategy of the backend that the parameters name; collective.

    Raises ``Refused`` on all ranks where the backend cannot serve the model's device.
    """
    makers: dict[str, Callable[..., Strategy]] = {
        "mpi4py": _OverMPI,
        "horovod": _Horovod,
        **{backend: partial(_Ddp, backend) for backend in ("mpi", "gloo", "nccl")},
    }
    if strategy.parallel(parameters) != "ddp":
        return _Fsdp(parameters.backend, communicator, model, optimizer, parameters)
    return makers[parameters.backend](communicator, model, optimizer, parameters)


class _OverMPI:
    """See ``Strategy``; ``hidl_workloads.training.data_parallel``."""

    def __init__(
        self, communicator: MPI.Comm, model: torch.nn.Module, optimizer: torch.optim.Optimizer, parameters: Training
    ) -> None:
        self.model = model
        self.versions: dict[str, str] = {}
        try:
            self.optimizer = DistributedOptimizer(
                optimizer,
                model,
                communicator,
                bucket_bytes=int(parameters.bucket_mib * 2**20),
                compression=parameters.compression,
                statistics="local",  # as with the other backends
                gpu_buffers=parameters.gpu_buffers,
            )
        except ValueError as error:
            raise Refused(str(error)) from error
        path: Path | None = self.optimizer.path
        self.path: str = path.name if path else ""
        self.path_reason: str = path.reason if path else ""

    def close(self) -> None:
        self.optimizer.close()


class _Horovod:
    """See ``Strategy``; the gradients travel while the backward pass runs, and the update waits for them."""

    def __init__(
        self, communicator: MPI.Comm, model: torch.nn.Module, optimizer: torch.optim.Optimizer, parameters: Training
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
        self.optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=hvd.Compression.fp16 if parameters.compression == "float16" else hvd.Compression.none,
        )
        self._hvd = hvd

    def close(self) -> None:
        self._hvd.shutdown()


class _C10d:
    """See ``Strategy``; the default group of ``torch.distributed``, and what DDP and FSDP2 have in common."""

    def __init__(
        self,
        backend: str,
        communicator: MPI.Comm,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        parameters: Training,
    ) -> None:
        from torch import distributed

        on_gpu = next(model.parameters()).is_cuda
        if backend == "nccl":
            device = next(model.parameters()).device
            torch_device.require_own_gpus(communicator, device, otherwise="backend=mpi4py")
        if backend == "mpi" and not distributed.is_mpi_available():
            raise Refused("backend mpi requires mpi4c10d, which the stack pytorch contains")
        if horovod_world.one_host(communicator):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        # Rank 0 chooses the store's port and broadcasts it over MPI.
        host = horovod_world.meeting_host(communicator)
        first = communicator.rank == 0
        store = distributed.TCPStore(host, 0, communicator.size, True, wait_for_workers=False) if first else None
        port = communicator.bcast(store.port if store else None)
        store = store or distributed.TCPStore(host, port, communicator.size, False)
        distributed.init_process_group(backend, store=store, rank=communicator.rank, world_size=communicator.size)
        self.model, self.optimizer = model, optimizer
        self.versions: dict[str, str] = {}
        self.path = "nccl" if backend == "nccl" else "staged" if on_gpu else ""
        self.path_reason = "by gloo" if self.path == "staged" else ""
        self._distributed = distributed
        self._share(communicator, parameters)

    def _share(self, communicator: MPI.Comm, parameters: Training) -> None:
        """Make the model train with those of the other ranks, from rank 0's weights."""
        raise NotImplementedError

    def close(self) -> None:
        self._distributed.destroy_process_group()


class _Ddp(_C10d):
    """``DistributedDataParallel``, the other backends' semantics: statistics stay with their rank."""

    def _share(self, communicator: MPI.Comm, parameters: Training) -> None:
        with warnings.catch_warnings():  # what it suggests instead of this option does less, by its own words
            warnings.simplefilter("ignore", FutureWarning)
            self.model = torch.nn.parallel.DistributedDataParallel(
                self.model, bucket_cap_mb=parameters.bucket_mib, broadcast_buffers=False
            )


class _Fsdp(_C10d):
    """FSDP2: each rank keeps a shard of the weights, of their gradients and of the optimizer's state."""

    def _share(self, communicator: MPI.Comm, parameters: Training) -> None:
        from torch.distributed.fsdp import fully_shard

        for tensor in self.model.state_dict().values():
            self._distributed.broadcast(tensor, 0)
        for block in getattr(self.model, "blocks", ()):
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer.param_groups[0]["params"] = list(self.model.parameters())  # the shards; there is no state yet
