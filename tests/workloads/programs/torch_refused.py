"""What cannot be as in one process, and what happens where one rank fails: cases of torch_oracle."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
import torch.distributed.fsdp
from errors import error_of
from torch import nn
from torch._dynamo import compiled_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.utils import prune
from torch_runs import FEATURES, PER_RANK, WORLD, distributed, loss_of, perceptron

from hidl_workloads.training.data_parallel.torch_normalization import synchronize_batch_norm
from hidl_workloads.training.data_parallel.torch_optimizer import _AVERAGERS as AVERAGERS
from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer
from hidl_workloads.training.data_parallel.torch_state import named_state
from hidl_workloads.training.data_parallel.weights import checksum


def schedule_by_own_loss() -> None:
    model = perceptron()
    optimizer = distributed(model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for number in range(3):
        loss_of(model, torch.ones(2, FEATURES)).backward()
        optimizer.step()
        scheduler.step(number if WORLD.rank else -number)


def sums_that_are_not_cleared() -> None:
    model = perceptron()
    distributed(model, average=False)
    for _ in range(2):
        loss_of(model, torch.ones(2, FEATURES)).backward()


def sums_that_are_replaced() -> None:
    model = perceptron()
    optimizer = distributed(model, average=False)
    loss_of(model, torch.ones(2, FEATURES)).backward()
    model[0].bias.grad = model[0].bias.grad * 2
    optimizer.step()


def sums_of_sparse_gradients() -> None:
    distributed(nn.Sequential(nn.Embedding(3, 2, sparse=True)), average=False)


def gradients_in_a_graph() -> None:
    model = perceptron()
    distributed(model)
    loss_of(model, torch.ones(2, FEATURES)).backward(create_graph=True)


def other_options_for_one_model() -> None:
    model = perceptron()
    distributed(model)
    distributed(model, accumulate=2)


def sparse_gradients_of_no_embedding() -> None:
    table = nn.Parameter(torch.ones(3, 2))
    distributed(nn.ParameterList([table]))
    nn.functional.embedding(torch.tensor([1]), table, sparse=True).sum().backward()


def grown_with_other_values() -> None:
    model = perceptron()
    distributed(model)
    model.append(nn.Linear(1, 1))
    nn.init.constant_(model[-1].weight, WORLD.rank)
    nn.init.zeros_(model[-1].bias)
    loss_of(model, torch.ones(2, FEATURES)).backward()


def shapeless() -> None:
    distributed(nn.Sequential(nn.LazyLinear(3)))


def other_buffers() -> None:
    model = perceptron()
    model.register_buffer("table", torch.zeros(WORLD.rank))
    distributed(model)


def unequal_numbers_of_batches() -> None:
    model = perceptron()
    optimizer = distributed(model)
    for x in optimizer.batches([torch.ones(2, FEATURES)] * (3 + WORLD.rank)):
        loss_of(model, x).backward()
        optimizer.step()


def steps_in_hooks() -> None:
    """One optimizer for each parameter, which steps as soon as the gradient is there."""
    model = perceptron()
    optimizers = {
        weight: DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), model, WORLD) for weight in model.parameters()
    }

    def update(weight: torch.Tensor) -> None:
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(update)
    loss_of(model, torch.ones(2, FEATURES)).backward()


def rows_rescaled_where_they_are_read() -> None:
    distributed(nn.Sequential(nn.Embedding(5, 2, max_norm=1.0)))


def buffers_of_a_second_module() -> None:
    model, second = perceptron(), nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2, affine=False))
    DistributedOptimizer(torch.optim.SGD([*model.parameters(), *second.parameters()]), model, WORLD)


def types_changed_after_the_wrap() -> None:
    model = perceptron()
    distributed(model)
    loss_of(model.double(), torch.ones(2, FEATURES).double()).backward()


def shapes_changed_after_the_wrap() -> None:
    """Of a weight whose gradient would fit into its old place after broadcasting."""
    model = nn.Sequential(nn.Linear(FEATURES, 3, bias=False))
    distributed(model)
    model[0].weight.data = torch.ones(1, FEATURES)
    loss_of(model, torch.ones(2, FEATURES)).backward()


def copies_of_the_optimizer() -> None:
    copy.deepcopy(distributed(perceptron()))


def pickles_of_the_optimizer() -> None:
    pickle.dumps(distributed(perceptron()))


def sums_changed_by_each_rank() -> None:
    model = perceptron()
    optimizer = distributed(model, average=False)
    loss_of(model, torch.ones(2, FEATURES)).backward()
    model[0].bias.grad.add_(WORLD.rank)
    optimizer.step()


def weights_rescaled_by_a_function() -> None:
    """In ``embedding(max_norm=...)``, which no module shows."""
    model = nn.ParameterList([nn.Parameter(torch.randn(30, 4))])
    optimizer = distributed(model)
    words = torch.tensor([WORLD.rank, 20])
    nn.functional.embedding(words, model[0], max_norm=0.5).square().sum().backward()
    optimizer.step()


def weights_changed_by_an_optimizer_in_a_hook() -> None:
    """One that is not wrapped, and steps by the gradients of this rank."""
    model = perceptron()
    optimizer = distributed(model)
    own = torch.optim.SGD([model[0].weight], lr=0.1)
    model[0].weight.register_post_accumulate_grad_hook(lambda _: own.step())
    loss_of(model, torch.full((2, FEATURES), 1.0 + WORLD.rank)).backward()
    optimizer.step()


def weights_changed_through_their_data() -> None:
    """Which their versions do not show."""
    model = perceptron()
    optimizer = distributed(model)
    for _ in range(4):
        loss_of(model, torch.ones(2, FEATURES)).backward()
        optimizer.step()
        model[0].weight.data.add_(WORLD.rank)


class Codebook(nn.Module):
    """Moves a buffer towards the batch, as codebooks and observers of a quantization do."""

    code: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("code", torch.zeros(FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.code.lerp_(x.mean(0), 0.1)
        return x - self.code


def buffers_changed_by_each_batch() -> None:
    model = nn.Sequential(Codebook(), perceptron())
    optimizer = distributed(model)
    loss_of(model, torch.full((2, FEATURES), 1.0 + WORLD.rank)).backward()
    optimizer.step()


def pruned_at_random() -> None:
    """The masks have equally many zeros."""
    model = perceptron()
    optimizer = distributed(model)
    torch.manual_seed(WORLD.rank)
    prune.random_unstructured(model[2], "weight", amount=0.5)
    loss_of(model, torch.ones(2, FEATURES)).backward()
    optimizer.step()


def compiled_backward_passes() -> None:
    model = perceptron()
    distributed(model)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        loss_of(model, torch.ones(2, FEATURES)).backward()


class Around:
    """Steps another optimizer, as implementations of Lookahead do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state
        self.step, self.zero_grad, self.state_dict = inner.step, inner.zero_grad, inner.state_dict


def optimizers_without_hooks() -> None:
    model = perceptron()
    DistributedOptimizer(Around(torch.optim.SGD(model.parameters())), model, WORLD)


def complex_weights() -> None:
    distributed(nn.ParameterList([torch.ones(3, dtype=torch.complex64)]))


class Anchored(torch.optim.SGD):
    """Draws weights towards those of the beginning, which are not part of its state."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, lr=0.1)
        self.begin = [weight.detach().clone() for weight in self.param_groups[0]["params"]]

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        with torch.no_grad():
            for weight, begin in zip(self.param_groups[0]["params"], self.begin, strict=True):
                weight.lerp_(begin, 0.5)


def optimizers_with_values_outside_of_their_state() -> None:
    model = perceptron()
    nn.init.constant_(model[2].weight, WORLD.rank)
    optimizer = DistributedOptimizer(Anchored(model.parameters()), model, WORLD)
    for _ in range(4):
        loss_of(model, torch.ones(2, FEATURES)).backward()
        optimizer.step()


def exchanged_parameters() -> None:
    model = perceptron()
    optimizer = distributed(model)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    loss_of(model, torch.ones(2, FEATURES)).backward()
    optimizer.step()


def _start_torch_distributed() -> None:
    if not torch.distributed.is_initialized():  # a second start would use the address of the first
        torch.distributed.init_process_group("gloo")


def averaged_by_torch_too() -> None:
    """A model that is wrapped after its optimizer, as frameworks do."""
    _start_torch_distributed()
    model = perceptron()
    optimizer = distributed(model)
    wrapped = nn.parallel.DistributedDataParallel(model)
    loss_of(wrapped, torch.ones(2, FEATURES)).backward()
    optimizer.step()


def averaged_by_torch_before() -> None:
    _start_torch_distributed()
    distributed(nn.parallel.DistributedDataParallel(perceptron()))


def sharded() -> None:
    _start_torch_distributed()
    mesh = init_device_mesh("cpu", (WORLD.size,))
    distributed(torch.distributed.fsdp.fully_shard(perceptron(), mesh=mesh))


REFUSED = [
    averaged_by_torch_too,
    averaged_by_torch_before,
    sharded,
    weights_rescaled_by_a_function,
    weights_changed_by_an_optimizer_in_a_hook,
    weights_changed_through_their_data,
    optimizers_with_values_outside_of_their_state,
    buffers_changed_by_each_batch,
    pruned_at_random,
    compiled_backward_passes,
    optimizers_without_hooks,
    complex_weights,
    exchanged_parameters,
    schedule_by_own_loss,
    sums_that_are_not_cleared,
    sums_that_are_replaced,
    sums_of_sparse_gradients,
    gradients_in_a_graph,
    other_options_for_one_model,
    sparse_gradients_of_no_embedding,
    grown_with_other_values,
    shapeless,
    other_buffers,
    steps_in_hooks,
    rows_rescaled_where_they_are_read,
    buffers_of_a_second_module,
    types_changed_after_the_wrap,
    shapes_changed_after_the_wrap,
    copies_of_the_optimizer,
    pickles_of_the_optimizer,
    sums_changed_by_each_rank,
    unequal_numbers_of_batches,
]


def refusals() -> dict[str, list[str]]:
    """What each rank raises for each of ``REFUSED``."""
    results = {}
    for act in REFUSED if WORLD.size > 1 else ():
        results[act.__name__.replace("_", " ")] = WORLD.allgather(error_of(act))
    return results


def failure_on_the_last_rank() -> dict[str, Any]:
    """Its second backward pass fails half-way; all leave that batch out, and go on."""
    model = perceptron()
    optimizer = distributed(model, bucket_bytes=1)
    fails = False

    def fail(gradient: torch.Tensor) -> None:
        if fails:
            raise ArithmeticError("no gradient")

    model[2].weight.register_hook(fail)
    errors = []
    for step in range(4):
        fails = step == 1 and WORLD.rank == WORLD.size - 1
        optimizer.zero_grad()
        error = error_of(loss_of(model, torch.randn(2, FEATURES)).backward)
        errors.append(error)
        if error == "no error":
            optimizer.step()
    sums = WORLD.allgather(checksum(named_state(model)))
    return {"errors": WORLD.allgather(errors), "checksums": sums}


def scaled_and_compressed() -> dict[str, Any]:
    """One rank's gradient leaves float16 on its way: GradScaler skips that step on all ranks, and they go on."""
    model = perceptron()
    optimizer = distributed(model, compression="float16")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    sums = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, torch.ones(2, FEATURES)) * (1e30 if step == 1 and WORLD.rank == 0 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        sums.append(checksum(named_state(model)))
    return {"scale": scaler.get_scale(), "skipped": sums[1] == sums[0] != sums[2], "checksums": WORLD.allgather(sums)}


def rebuilt() -> dict[str, int]:
    """What is left of closed optimizers, and how many averagers serve some that were not closed."""
    model = perceptron()
    before = len(AVERAGERS)
    for _ in range(3):
        distributed(model).close()
    hooks = [len(weight._post_accumulate_grad_hooks or ()) for weight in model.parameters()]
    closed = len(AVERAGERS) - before
    kept = [distributed(model) for _ in range(3)]
    return {
        "averagers": closed,
        "hooks": sum(hooks),
        "averagers that share": len({id(each._averager) for each in kept}),
    }


def statistics(choice: Any) -> dict[str, Any]:
    """The running statistics of a first layer, against what the samples say, and whether ranks have the same state."""
    model = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 1))
    optimizer = distributed(model, statistics=choice)
    parts = torch.randn(WORLD.size, PER_RANK, FEATURES, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, parts[WORLD.rank]).backward()
        optimizer.step()
    kept, taken = 0.9**2, 1 - 0.9**2
    mean = float((model[0].running_mean - taken * parts.mean((0, 1))).abs().max())
    variance = float((model[0].running_var - kept - taken * parts.var(1).mean(0)).abs().max())
    return {"difference": max(mean, variance), "checksums": WORLD.allgather(checksum(named_state(model)))}


def narrow_normalization() -> dict[str, float]:
    """The largest difference from float32's of synchronized normalization of narrower numbers, many in a channel."""
    x = torch.randn(70_000, 2, generator=torch.Generator().manual_seed(1)) + 3
    exact = nn.functional.batch_norm(x, None, None, training=True)
    part = x.chunk(WORLD.size)[WORLD.rank]
    expected = exact.chunk(WORLD.size)[WORLD.rank]
    differences = {}
    for kind in (torch.bfloat16, torch.float16):
        layer = synchronize_batch_norm(nn.BatchNorm1d(2), WORLD)
        found = layer(part.to(kind))
        assert found.dtype == kind
        differences[str(kind)] = WORLD.allreduce(float((found.float() - expected).abs().max()), max)
    return differences
