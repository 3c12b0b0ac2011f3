"""Train with every kind of parallelism of PyTorch, and save each program's results, which are the same on every rank.

Arguments: the backend, the file for the results, names of programs (default: all).
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

Tensors = Iterable[torch.Tensor]
PROGRAMS: dict[str, Callable[[], Tensors]] = {}


def program(function: Callable[[], Tensors]) -> Callable[[], Tensors]:
    PROGRAMS[function.__name__] = function
    return function


class Block(nn.Module):
    """A residual block with batch normalisation."""

    def __init__(self, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(width, outputs, 1, stride, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norms[1](self.two(torch.relu(self.norms[0](self.one(x)))))
        return torch.relu(inner + self.norms[2](self.short(x)))


def resnet(*widths: int) -> nn.Module:
    blocks = [Block(before, after, 2) for before, after in zip((3, *widths), widths, strict=False)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def mlp(layers: int = 4, width: int = 64) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)])


def batch(step: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(*shape, generator=generator)


def train(
    model: nn.Module, *, images: bool = False, optimizer: torch.optim.Optimizer | None = None
) -> list[torch.Tensor]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        x = batch(step, 4, 3, 32, 32) if images else batch(step, 8, 64)
        model(x).float().square().mean().backward()
        optimizer.step()
    return [_full(parameter) for parameter in model.parameters()]


def _full(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@program
def ddp() -> Tensors:
    return train(DDP(resnet(8, 16)), images=True)


@program
def ddp_deeper() -> Tensors:
    return train(DDP(resnet(8, 8, 16, 32, 64), bucket_cap_mb=0.05), images=True)


@program
def ddp_static_graph() -> Tensors:
    return train(DDP(mlp(), static_graph=True, gradient_as_bucket_view=True))


class Unused(nn.Module):
    """A model with a layer that every second rank leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.always(x)
        return self.sometimes(x) if dist.get_rank() % 2 else x


@program
def ddp_find_unused() -> Tensors:
    return train(DDP(Unused(), find_unused_parameters=True))


@program
def ddp_powersgd() -> Tensors:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = DDP(mlp())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model)


@program
def ddp_join() -> Tensors:
    from torch.distributed.algorithms.join import Join

    model = DDP(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Join([model]):
        for step in range(2 + dist.get_rank()):
            optimizer.zero_grad()
            model(batch(step, 8, 64)).square().mean().backward()
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@program
def ddp_compiled() -> Tensors:
    return train(torch.compile(DDP(mlp()), backend="aot_eager"))


@program
def fsdp2() -> Tensors:
    return train(_sharded(mlp()))


@program
def fsdp2_bf16() -> Tensors:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return train(_sharded(mlp(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)))


@program
def hsdp() -> Tensors:
    size = dist.get_world_size()
    shape = (2, size // 2) if size % 2 == 0 else (1, size)
    return train(_sharded(mlp(), mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))))


def _sharded(model: nn.Sequential, **options: object) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    options.setdefault("mesh", _mesh())
    for layer in model:
        fully_shard(layer, **options)  # type: ignore[arg-type]
    return fully_shard(model, **options)  # type: ignore[arg-type]


@program
def fsdp1() -> Tensors:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    model = FSDP(mlp(), device_id=torch.device("cpu"), use_orig_params=True)
    train(model)
    with FSDP.summon_full_params(model):
        return [parameter.detach().clone() for parameter in model.parameters()]


@program
def zero_optimizer() -> Tensors:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(mlp())
    return train(model, optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01))


@program
def checkpoint() -> Tensors:
    import torch.distributed.checkpoint as dcp

    model = _sharded(mlp())
    train(model)
    where = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(where, 0)
    dcp.save(model.state_dict(), checkpoint_id=where[0])
    again = _sharded(mlp())
    state = again.state_dict()
    dcp.load(state, checkpoint_id=where[0])
    again.load_state_dict(state)
    return [_full(parameter) for parameter in again.parameters()]


def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


class Pair(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 48 * 4), nn.Linear(48 * 4, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def _same_input(step: int) -> torch.Tensor:
    return torch.randn(12, 64, generator=torch.Generator().manual_seed(step))


@program
def tensor_parallel() -> Tensors:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = parallelize_module(Pair(), _mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return _train_on_same(model)


@program
def sequence_parallel() -> Tensors:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {
        "up": ColwiseParallel(input_layouts=Replicate()),
        "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
    }
    return _train_on_same(parallelize_module(Pair(), _mesh(), plan))


def _train_on_same(model: nn.Module) -> Tensors:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        output = model(_same_input(step))
        _full_with_gradient(output).square().mean().backward()
        optimizer.step()
    return [_full(parameter) for parameter in model.parameters()]


def _full_with_gradient(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@program
def dtensor_redistribute() -> Tensors:
    from torch.distributed.tensor import DTensor as DT
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh, whole = _mesh(), _same_input(7)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    summed = DT.from_local(whole * (dist.get_rank() + 1), mesh, [Partial()]).redistribute(mesh, [Shard(0)])
    return [columns.full_tensor(), columns.redistribute(mesh, [Replicate()]).to_local(), summed.full_tensor()]


@program
def pipeline() -> Tensors:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, size = dist.get_rank(), dist.get_world_size()
    stages = [mlp(1) for _ in range(size)]
    stage = PipelineStage(stages[rank], rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda output, target: (output - target).square().mean())
    optimizer = torch.optim.SGD(stages[rank].parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(_same_input(step), target=_same_input(step + 9) if size == 1 else None)
        elif rank == size - 1:
            schedule.step(target=_same_input(step + 9), losses=[])
        else:
            schedule.step()
        optimizer.step()
    return _of_all(stages[rank].parameters())


def _of_all(tensors: Iterable[torch.Tensor]) -> Tensors:
    """Gather tensors of equal shapes from all ranks."""
    mine = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return parts


@program
def functional() -> Tensors:
    import torch.distributed._functional_collectives as funcol

    size, group = dist.get_world_size(), dist.group.WORLD
    x = batch(0, 6 * size, 4)
    return [
        funcol.all_reduce(x, "sum", group).clone(),
        funcol.all_gather_tensor(x, 0, group).clone(),
        *_of_all([funcol.reduce_scatter_tensor(x, "sum", 0, group).clone()]),
        *_of_all([funcol.all_to_all_single(x, None, None, group).clone()]),
        *[each.clone() for each in funcol.all_reduce_coalesced([x, x + 1], "sum", group)],
        *[each.clone() for each in funcol.all_gather_into_tensor_coalesced([x, x + 1], group)],
    ]


@program
def compiled_all_reduce() -> Tensors:
    import torch.distributed._functional_collectives as funcol

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(x * 2, "sum", "0").relu() + 1

    return [step(batch(0, 8, 8))]


@program
def autograd() -> Tensors:
    import torch.distributed.nn as dnn

    x = batch(0, 4, 4).requires_grad_()
    total = dnn.all_reduce(x * 2) + torch.stack(list(dnn.all_gather(x))).sum(0)
    total.square().sum().backward()
    return _of_all([x.grad])


@program
def objects_and_groups() -> Tensors:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": each} for each in range(size)]
    pair = dist.new_group([0, size - 1])
    x = batch(0, 5)
    if rank in (0, size - 1):
        dist.all_reduce(x, group=pair)
    dist.broadcast(x, 0)
    dist.destroy_process_group(pair)
    return [x]


def digest(tensors: Tensors) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def main() -> None:
    backend, file, *names = sys.argv[1:]
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    results: dict[str, object] = {}
    for name in names or PROGRAMS:
        torch.manual_seed(0)
        try:
            mine: object = [tensor.detach().clone() for tensor in PROGRAMS[name]()]
        except Exception:
            mine = traceback.format_exc()
        everybody: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, mine if isinstance(mine, str) else digest(mine))
        results[name] = mine if len(set(everybody)) == 1 else f"ranks differ: {everybody}"
    if dist.get_rank() == 0:
        torch.save(results, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
