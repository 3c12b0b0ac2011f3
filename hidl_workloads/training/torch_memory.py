"""Predicted memory of a training step with PyTorch.

The step runs once on tensors that have a size and no data (``FakeTensorMode``), on the part of the network that a rank
has. Bytes that exist at the same time are counted. What libraries add is known: copies of gradients in buckets, weights
that FSDP2 gathers, messages between stages.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hidl_workloads.parameters import Training
from hidl_workloads.training import strategy
from hidl_workloads.training.model import Model

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_STATES = {"sgd": 0, "adam": 2}
#: Copies of the gradients in the buckets of libraries that average them; shared memory also has parts of other ranks'.
_BUCKETS = {"mpi": 1, "gloo": 1, "nccl": 1, "mpi4py": 2, "horovod": 1}
#: Copies of a block, and of the weights outside of blocks, at the end of FSDP2's backward pass: gathered (for a block,
#: also the next one), their gradients, and gradients in transfer.
_BLOCK_COPIES, _ROOT_COPIES = 4, 4
#: Temporary copies of the largest weight in an update.
_UPDATE_COPIES = 2


@dataclass(frozen=True)
class Share:
    """A rank's part of a training.

    Attributes:
        ranks: of the world.
        rank: this one.
        partitions: ranks that have one copy of the weights together.
        parts: micro-batches of the batch that these ranks train on.
    """

    ranks: int
    rank: int
    partitions: int
    parts: int


def predict(
    model: Model, inputs: torch.Tensor, targets: torch.Tensor, parameters: Training, *, loss: Loss, share: Share
) -> int:
    """Return the bytes of a step on one rank: weights, gradients, optimizer, batch, and what the passes keep.

    Args:
        model: the whole model.
        inputs: this rank's samples.
        targets: this rank's classes.
        parameters: of the workload.
        loss: called with outputs and targets.
        share: this rank's part.
    """
    parallel, fake = strategy.parallel(parameters), FakeTensorMode()
    of_batch = _bytes(inputs) + _bytes(targets)
    with torch.random.fork_rng(devices=()):
        network = _network(model, parallel, share, can_divide=hasattr(parameters, "parallel"))
    with fake:
        inputs, targets = fake.from_tensor(inputs), fake.from_tensor(targets)
        _make_fake(network)
        if parallel in ("tp", "pp"):
            inputs, targets = (torch.cat([each] * share.partitions) for each in (inputs, targets))
            of_batch *= 1 + share.partitions
        part = inputs.chunk(share.parts)[0].clone(), targets.chunk(share.parts)[0].clone()
        divided = parallel in ("fsdp", "hsdp") or (parallel == "tp" and share.partitions < share.ranks)
        precision = torch.bfloat16 if parameters.precision == "bfloat16" else torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
            if parallel == "pp" and share.partitions > 1:
                passes = _stage_peak(network, *part, loss, share)
            else:
                passes = _peak(network, *part, loss, times=min(2, share.parts), keeps_gradients=not divided)
    weights = [_bytes(weight) for weight in network.parameters()]
    whole, states = sum(weights), _STATES[parameters.optimizer]
    if divided:
        shards = share.partitions if parallel in ("fsdp", "hsdp") else share.ranks // share.partitions
        block = sum(map(_bytes, network.blocks[0].parameters()))
        root = whole - sum(map(_bytes, network.blocks.parameters()))
        gradients = whole // shards
        within = passes + root + block + (gradients if share.parts > 1 else 0)
        at_end = gradients + _BLOCK_COPIES * block + _ROOT_COPIES * root
        return whole * (1 + states) // shards + max(within, at_end) + of_batch
    buckets = _BUCKETS[parameters.backend] * whole if parallel == "ddp" else 0
    update = whole + _UPDATE_COPIES * max(weights)
    return whole * (1 + states) + buckets + max(passes, update) + of_batch


def _network(model: Model, parallel: str, share: Share, *, can_divide: bool) -> Any:
    """Return the part of the network that a rank computes; its weights have no memory."""
    with torch.device("meta"):
        network: Any = model.torch_network(empty=True) if can_divide else model.torch_network()  # type: ignore[call-arg]
    if parallel == "tp":
        _divide(network, network.tensor_plan(), share.partitions)
    if parallel == "pp":
        network.cut(share.rank % share.partitions, share.partitions)
    return network


def _make_fake(network: torch.nn.Module) -> None:
    """Put weights and buffers on the CPU, in the mode that is active."""
    made: dict[int, torch.Tensor] = {}  # keeps shared weights shared
    for module in network.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
                    is_weight = isinstance(tensor, torch.nn.Parameter)
                    made[id(tensor)] = torch.nn.Parameter(empty, tensor.requires_grad) if is_weight else empty
                tensors[name] = made[id(tensor)]


def _divide(network: torch.nn.Module, plan: Mapping[str, Any], partitions: int) -> None:
    """Make the matrices of the plan as large as one of several ranks has them."""
    for name, module in network.named_modules():
        style = next((type(each).__name__ for pattern, each in plan.items() if fnmatchcase(name, pattern)), None)
        if style is None:
            continue
        dimension = 1 if style == "RowwiseParallel" and isinstance(module, torch.nn.Linear) else 0
        for key, weight in list(module.named_parameters(recurse=False)):
            if dimension < weight.dim():
                size = list(weight.shape)
                size[dimension] = -(-size[dimension] // partitions)
                setattr(module, key, torch.nn.Parameter(weight.new_empty(size)))


def _peak(
    network: torch.nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss: Loss,
    *,
    times: int,
    keeps_gradients: bool,
) -> int:
    """Return the most bytes that forward and backward passes have at once, beside the weights."""
    if not keeps_gradients:  # gradients are divided as soon as they are computed
        for weight in network.parameters():
            weight.register_post_accumulate_grad_hook(_forget)
    with _Living(network) as living:
        for _ in range(times):
            loss(network(inputs), targets).backward()
    return int(living.peak)


def _stage_peak(network: Any, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss, share: Share) -> int:
    """Return ``_peak`` of a stage: 1F1B has as many micro-batches under way as stages follow, with this one."""
    stage = share.rank % share.partitions
    is_last = stage == share.partitions - 1
    width = network.blocks[0].norm1.weight.numel()
    message = torch.empty(*inputs.shape, width)
    messages = share.parts * _bytes(message) * ((stage > 0) + (not is_last))
    with _Living(network) as living:
        under_way = []
        for _ in range(min(share.parts, share.partitions - stage)):
            each = inputs if stage == 0 else torch.empty_like(message, requires_grad=True)
            output = network(each)
            under_way.append((output, loss(output, targets) if is_last else output))
        while under_way:
            _, result = under_way.pop(0)
            result.backward(None if is_last else torch.empty_like(result))
    return int(living.peak) + messages


class _Living(TorchDispatchMode):  # type: ignore[misc]  # torch is not installed where types are checked
    """The bytes of all tensors that operations make, as long as they exist, except a network's weights."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.now: int = 0
        self.peak: int = 0
        kept = [*network.parameters(), *network.buffers()]
        self._known: dict[int, Any] = {id(each): each for each in (tensor.untyped_storage() for tensor in kept)}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self._add(each.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._known:
            return
        self.now += size
        self.peak = max(self.peak, self.now)

        def remove(_: Any) -> None:
            self.now -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, remove)


def _forget(weight: torch.Tensor) -> None:
    weight.grad = None


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())
