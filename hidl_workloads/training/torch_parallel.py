"""Strategies of ``torch.distributed``: DDP, FSDP2 in shards and in replicas of shards, tensor parallelism, pipelines.

Each trains on the batches of all ranks, and computes what one process would. Ranks that have one copy of the weights
together, ``partitions`` of them, train on their batches joined.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from mpi4py import MPI
from torch import distributed

from hidl_workloads import phases, torch_device
from hidl_workloads.parameters import Training
from hidl_workloads.refusal import Refused
from hidl_workloads.training import horovod_world, strategy

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_MODULES = {
    "fsdp": ("torch.distributed.fsdp",),
    "hsdp": ("torch.distributed.fsdp",),
    "tp": ("torch.distributed.fsdp", "torch.distributed.tensor.parallel"),
    "pp": ("torch.distributed.pipelining",),
}


def load(parameters: Training) -> None:
    """Import the modules of PyTorch that a strategy uses, whose memory is not the training's."""
    for name in _MODULES.get(strategy.parallel(parameters), ()):
        importlib.import_module(name)


def accumulate(model: Callable[..., Any], inputs: torch.Tensor, targets: torch.Tensor, parts: int, loss: Loss) -> float:
    """Add the gradients of the batch's parts to the weights' and return the batch's loss."""
    return sum(
        backward(model, *part, parts, loss) for part in zip(inputs.chunk(parts), targets.chunk(parts), strict=True)
    )


def backward(model: Callable[..., Any], inputs: torch.Tensor, targets: torch.Tensor, parts: int, loss: Loss) -> float:
    """Add the gradients of one of equal parts of a batch and return its share of the loss."""
    with phases.phase(phases.FORWARD):
        share = loss(model(inputs), targets) / parts
    with phases.phase(phases.BACKWARD):
        share.backward()
    return float(share.item())


class C10d:
    """The default group of ``torch.distributed``, and what its strategies have in common; see ``Strategy``."""

    def __init__(
        self,
        communicator: MPI.Comm,
        model: torch.nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        parameters: Training,
    ) -> None:
        backend, self._device = parameters.backend, torch_device.choose_device(communicator)
        on_gpu = self._device.type == "cuda"
        if backend == "nccl":
            torch_device.require_own_gpus(communicator, self._device, otherwise="backend=mpi4py")
        if backend == "mpi" and not distributed.is_mpi_available():
            raise Refused("backend mpi requires mpi4c10d, which the stack pytorch contains")
        if horovod_world.one_host(communicator):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._parameters, self._size = parameters, communicator.size
        self._partitions = strategy.partitions(parameters, communicator)
        self._parts = strategy.parts(parameters, self._partitions)
        # Rank 0 chooses the store's port and broadcasts it over MPI.
        host = horovod_world.meeting_host(communicator)
        first = communicator.rank == 0
        store = distributed.TCPStore(host, 0, communicator.size, True, wait_for_workers=False) if first else None
        port = communicator.bcast(store.port if store else None)
        store = store or distributed.TCPStore(host, port, communicator.size, False)
        distributed.init_process_group(backend, store=store, rank=communicator.rank, world_size=communicator.size)
        self.versions: dict[str, str] = {}
        self.path = "nccl" if backend == "nccl" else "staged" if on_gpu else ""
        self.path_reason = "by gloo" if self.path == "staged" else ""
        self.model = self.share(model)
        self.optimizer = optimizer(self.model.parameters())

    def share(self, model: Any) -> torch.nn.Module:
        """Return the model as this rank trains it, with those of the other ranks."""
        raise NotImplementedError

    def mesh(self) -> Any:
        """Return the ranks in replicas of ``partitions`` ranks."""
        shape = (self._size // self._partitions, self._partitions)
        return distributed.device_mesh.init_device_mesh(
            self._device.type, shape, mesh_dim_names=("replicas", "partitions")
        )

    def batch(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch that this rank trains on."""
        return inputs, targets

    def computing(self) -> AbstractContextManager[Any]:
        """Return a context for the forward and backward pass."""
        return nullcontext()

    def train(self, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss) -> float:
        with self.computing():
            return accumulate(self.model, inputs, targets, self._parts, loss)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self.model.named_parameters():
            whole = weight.detach()
            yield name, whole.full_tensor() if hasattr(whole, "full_tensor") else whole

    def close(self) -> None:
        distributed.destroy_process_group()

    def _joined(self, group: Any, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batches of the group's ranks as one."""
        both = []
        for tensor in (inputs, targets):
            parts = [torch.empty_like(tensor) for _ in range(self._partitions)]
            distributed.all_gather(parts, tensor, group=group)
            both.append(torch.cat(parts))
        return both[0], both[1]


class Ddp(C10d):
    """``DistributedDataParallel``, the other backends' semantics: statistics stay with their rank."""

    def share(self, model: Any) -> torch.nn.Module:
        self._plain = model
        with warnings.catch_warnings():  # the suggested replacement of this option does less, according to torch
            warnings.simplefilter("ignore", FutureWarning)
            return torch.nn.parallel.DistributedDataParallel(
                model, bucket_cap_mb=self._parameters.bucket_mib, broadcast_buffers=False
            )

    def train(self, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss) -> float:
        *first, last = zip(inputs.chunk(self._parts), targets.chunk(self._parts), strict=True)
        with self.model.no_sync():
            before = sum(backward(self.model, *part, self._parts, loss) for part in first)
        return before + backward(self.model, *last, self._parts, loss)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, weight.detach()) for name, weight in self._plain.named_parameters())


class Fsdp(C10d):
    """FSDP2: each rank has a shard of the weights, of their gradients and of the optimizer's state.

    With micro-batches, gradients are averaged after each: to keep them whole would need the memory that shards save.
    """

    def share(self, model: Any) -> torch.nn.Module:
        return self.shard(model, self.mesh()["partitions"] if self._partitions == self._size else self.mesh())

    def shard(self, model: Any, mesh: Any) -> torch.nn.Module:
        """Divide the weights among the ranks of the mesh's last dimension, and fill them."""
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import distribute_tensor

        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.to_empty(device=self._device)

        def put(weight: Any, values: torch.Tensor) -> None:
            shard = distribute_tensor(
                values.to(self._device), weight.device_mesh, weight.placements, src_data_rank=None
            )
            weight.to_local().copy_(shard.to_local())

        model.fill(put)
        return model


class TensorParallel(Fsdp):
    """Every matrix divided among ``partitions`` ranks; several such groups have shards of each part (FSDP2)."""

    def share(self, model: Any) -> torch.nn.Module:
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor, distribute_tensor
        from torch.distributed.tensor.parallel import parallelize_module

        mesh = self.mesh()
        self._group = mesh.get_group("partitions")
        parallelize_module(model, mesh["partitions"], model.tensor_plan())
        model.to_empty(device=self._device)
        model.tie()

        def put(weight: Any, values: torch.Tensor) -> None:
            values = values.to(self._device)
            if isinstance(weight, DTensor):
                part = distribute_tensor(values, weight.device_mesh, weight.placements, src_data_rank=None)
                weight.to_local().copy_(part.to_local())
            else:
                weight.copy_(values)

        model.fill(put)
        if self._partitions < self._size:
            for block in model.blocks:
                fully_shard(block, mesh=mesh["replicas"])
            fully_shard(model, mesh=mesh["replicas"])
        return model

    def batch(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._joined(self._group, inputs, targets)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        # Parts of shards are gathered in two steps, about which torch warns on every rank.
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        return super().weights()

    def computing(self) -> AbstractContextManager[Any]:
        from torch.distributed.tensor.parallel import loss_parallel

        context: AbstractContextManager[Any] = loss_parallel()
        return context


class Pipeline(C10d):
    """A stage of the network on each of ``partitions`` ranks, through which micro-batches pass (1F1B)."""

    def share(self, model: Any) -> torch.nn.Module:
        mesh = self.mesh()
        self._pipeline, self._replicas = mesh.get_group("partitions"), mesh.get_group("replicas")
        self._stage = distributed.get_rank(self._pipeline)
        self._last = self._partitions - 1
        ends = [
            distributed.new_group([first, first + self._last])
            for first in range(0, self._size, self._partitions)
            if self._last > 0
        ]
        self._ends = (
            ends[distributed.get_rank() // self._partitions] if self._stage in (0, self._last) and ends else None
        )
        model.cut(self._stage, self._partitions)
        model.to_empty(device=self._device)
        model.tie()
        model.fill(lambda weight, values: weight.copy_(values))
        return model

    def batch(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._joined(self._pipeline, inputs, targets)

    def train(self, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss) -> float:
        if self._last == 0:
            total = accumulate(self.model, inputs, targets, self._parts, loss)
        else:
            total = self._pass_through(inputs, targets, loss)
        gradients = [weight.grad for weight in self.model.parameters()]
        if self._ends is not None:  # both ends have the embedding matrix
            end = self.model.tokens if self._stage == 0 else self.model.output
            distributed.all_reduce(end.weight.grad, group=self._ends)
        self._average(gradients)
        return total

    def _pass_through(self, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss) -> float:
        if not hasattr(self, "_schedule"):
            from torch.distributed.pipelining import PipelineStage, Schedule1F1B

            stage = PipelineStage(self.model, self._stage, self._partitions, self._device, group=self._pipeline)
            self._schedule = Schedule1F1B(stage, self._parts, loss_fn=loss)
        total = torch.zeros(())
        if self._stage == 0:
            self._schedule.step(inputs)
        elif self._stage == self._last:
            losses: list[torch.Tensor] = []
            self._schedule.step(target=targets, losses=losses, return_outputs=False)
            total = torch.stack(losses).mean().detach().cpu()
        else:
            self._schedule.step()
        total = total.to(self._device)
        distributed.broadcast(total, group_src=self._last, group=self._pipeline)
        return float(total.item())

    def _average(self, gradients: Sequence[torch.Tensor]) -> None:
        """Average the gradients of the stage over the replicas."""
        replicas = self._size // self._partitions
        if replicas == 1:
            return
        works = [distributed.all_reduce(each, group=self._replicas, async_op=True) for each in gradients]
        for work, gradient in zip(works, gradients, strict=True):
            work.wait()
            gradient.div_(replicas)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights of all stages, which their ranks broadcast one by one."""
        mine = list(super().weights())
        described: list[Any] = [None] * self._partitions
        distributed.all_gather_object(described, [(name, weight.shape) for name, weight in mine], group=self._pipeline)
        own = dict(mine)
        for stage, weights in enumerate(described):
            for name, shape in weights or ():
                weight = own[name] if stage == self._stage else torch.empty(shape, device=self._device)
                distributed.broadcast(weight, group_src=stage, group=self._pipeline)
                yield name, weight


MAKERS: dict[str, type[C10d]] = {"ddp": Ddp, "fsdp": Fsdp, "hsdp": Fsdp, "tp": TensorParallel, "pp": Pipeline}
