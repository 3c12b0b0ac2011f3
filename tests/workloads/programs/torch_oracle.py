"""Programs that train with PyTorch, each in one process on the joint batches and on ranks with their parts.

What they can see (parameters, buffers, gradients, optimizer state, settings, losses) is compared. Written as JSON to
argv[1]: for each case the largest difference, "different" where one has something that the other lacks, and what was
raised. With argv[2:], only those cases, which may be seeds of programs that are drawn.
"""

from __future__ import annotations

import copy
import json
import math
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.utils.checkpoint import checkpoint

from hidl_workloads.training.data_parallel.torch_gradients import named_state
from hidl_workloads.training.data_parallel.torch_normalization import synchronize_batch_norm
from hidl_workloads.training.data_parallel.torch_optimizer import _AVERAGERS as AVERAGERS
from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer
from hidl_workloads.training.data_parallel.weights import checksum

WORLD = MPI.COMM_WORLD
PER_RANK = 4
FEATURES = 5
Program = Callable[["Run"], None]
PROGRAMS: dict[str, Program] = {}


def program(act: Program) -> Program:
    PROGRAMS[act.__name__.replace("_", " ")] = act
    return act


class Run:
    """A program's surroundings: one process with all samples, or a rank with its part of them."""

    def __init__(self, joint: bool) -> None:
        self.joint = joint
        self.seen: list[tuple[str, Any]] = []
        self._random = torch.Generator().manual_seed(1)
        self._optimizers: list[Any] = []
        torch.manual_seed(0 if joint else WORLD.rank)  # other weights and buffers on each rank at the start

    def batch(self, *shape: int, per_rank: int = PER_RANK) -> torch.Tensor:
        """Samples of this shape: all, or this rank's."""
        return self.mine(torch.randn(per_rank * WORLD.size, *(shape or (FEATURES,)), generator=self._random))

    def words(self, most: int) -> torch.Tensor:
        """Numbers below ``most``, three a sample."""
        return self.mine(torch.randint(most, (PER_RANK * WORLD.size, 3), generator=self._random))

    def mine(self, samples: torch.Tensor) -> torch.Tensor:
        return samples if self.joint else samples.chunk(WORLD.size)[WORLD.rank]

    def on_rank_0(self, samples: torch.Tensor) -> torch.Tensor:
        """A view of the samples that rank 0 has."""
        if self.joint:
            return samples.chunk(WORLD.size)[0]
        return samples if WORLD.rank == 0 else samples[:0]

    def wrap(self, optimizer: Any, model: nn.Module, **options: Any) -> Any:
        if self.joint:
            return optimizer
        self._optimizers.append(DistributedOptimizer(optimizer, model, WORLD, **{"bucket_bytes": 100} | options))
        return self._optimizers[-1]

    def mean(self, value: Any) -> float:
        return float(value) if self.joint else WORLD.allreduce(float(value)) / WORLD.size

    def see(self, model: nn.Module, *optimizers: Any, **others: Any) -> None:
        tensors = (*model.named_parameters(), *model.named_buffers())
        self.seen += [(name, tensor.detach().clone()) for name, tensor in tensors]
        self.seen += [(f"gradient of {name}", _copy(weight.grad)) for name, weight in model.named_parameters()]
        for optimizer in optimizers:
            for key, state in optimizer.state_dict()["state"].items():
                self.seen += [(f"{name} of {key}", _copy(value)) for name, value in state.items()]
            self.seen += [("lr", group["lr"]) for group in optimizer.param_groups]
        self.seen += others.items()

    def close(self) -> None:
        for optimizer in self._optimizers:
            optimizer.close()


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to_dense().clone()


def perceptron(width: int = FEATURES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def momentum(weights: Any, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=lr, momentum=0.9, weight_decay=0.01)


def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def train(run: Run, model: nn.Module, optimizer: Any, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, run.batch()).backward()
        optimizer.step()
        run.see(model, optimizer)


@program
def amp_with_overflow(run: Run) -> None:
    """GradScaler, unscaled gradients clipped; in the third step rank 0's samples overflow."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))  # large enough to be summed in shared memory
    optimizer = run.wrap(momentum(model.parameters(), 0.01), model, bucket_bytes=2**20)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(6):
        x = run.batch(256)
        if step == 2:
            run.on_rank_0(x).mul_(torch.inf)
        optimizer.zero_grad()
        scaler.scale((model(x) - x).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        if step != 2:
            run.see(model, optimizer, scale=scaler.get_scale())


@program
def clipped(run: Run) -> None:
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, run.batch()).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        run.see(model, norm=float(norm))
        optimizer.step()
        run.see(model, optimizer)


@program
def frozen_in_mid_training(run: Run) -> None:
    for make in (momentum, torch.optim.AdamW):
        model = perceptron()
        optimizer = run.wrap(make(model.parameters(), lr=0.1), model)
        train(run, model, optimizer)
        model[2].requires_grad_(False)
        train(run, model, optimizer)
        model[2].requires_grad_(True)
        train(run, model, optimizer)


@program
def unused_layers(run: Run) -> None:
    """A layer that nobody uses after the first step, and one that no sample ever reaches."""
    model = nn.ModuleDict({"body": perceptron(), "spare": nn.Linear(1, 1), "never": nn.Linear(1, 1)})
    optimizer = run.wrap(momentum(model.parameters()), model)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model.body if step else lambda x: model.spare(model.body(x)), run.batch()).backward()
        optimizer.step()
        run.see(model, optimizer)


@program
def used_on_rank_0_alone(run: Run) -> None:
    model = nn.ModuleDict({"body": perceptron(), "spare": nn.Linear(FEATURES, 1)})
    optimizer = run.wrap(momentum(model.parameters()), model)
    for _ in range(3):
        x = run.batch()
        optimizer.zero_grad()
        loss = loss_of(model.body, x)
        own = run.on_rank_0(x)
        if len(own):
            loss = loss + model.spare(own).sum() / len(x)
        loss.backward()
        optimizer.step()
        run.see(model, optimizer)


@program
def unfrozen_later(run: Run) -> None:
    model = perceptron()
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    optimizer = run.wrap(momentum(model.parameters()), model)
    train(run, model, optimizer)
    model[2].requires_grad_(True)
    train(run, model, optimizer)
    model[4].requires_grad_(False)
    model[2].requires_grad_(False)
    model[0].requires_grad_(True)  # none of those that had gradients so far
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, run.batch()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        run.see(model, optimizer)


@program
def parameters_outside_of_the_model(run: Run) -> None:
    """A second module and the weight of a loss are the optimizer's; a third module joins later."""
    model, second, third = perceptron(), nn.Linear(1, 1), nn.Linear(1, 1)
    scale = nn.Parameter(torch.rand(()))
    everything = nn.ModuleDict({"model": model, "second": second, "third": third})
    optimizer = run.wrap(momentum([*model.parameters(), *second.parameters(), scale]), model)
    for step in range(5):
        x = run.batch()
        if step == 2:
            optimizer.add_param_group({"params": third.parameters(), "lr": 0.05})
        y = second(model(x))
        optimizer.zero_grad()
        loss = scale * ((third(y) if step > 1 else y) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        if step > 1:
            run.see(everything, optimizer, scale=scale.detach().clone())


@program
def adversaries(run: Run) -> None:
    """A GAN: the generator's pass reaches the discriminator too; the penalty needs a second derivative."""
    generator, critic = perceptron(), nn.Sequential(nn.Linear(1, 6), nn.Softplus(), nn.Linear(6, 1))
    of_generator = run.wrap(torch.optim.Adam(generator.parameters(), lr=0.01), generator)
    of_critic = run.wrap(torch.optim.Adam(critic.parameters(), lr=0.01), critic)
    for _ in range(4):
        noise, real = run.batch(), run.batch(1)
        of_critic.zero_grad()
        critic(generator(noise).detach()).mean().backward()
        critic(real).mean().neg().backward()
        between = (real + generator(noise).detach()).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        (slope.norm(dim=1) - 1).square().mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        critic(generator(noise)).mean().neg().backward()
        of_generator.step()
        run.see(generator, of_generator)
        run.see(critic, of_critic)


@program
def batches_left_out(run: Run) -> None:
    """After their backward pass, with accumulation too; the gradients are cleared by the module."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model, accumulate=2)
    for step in range(6):
        optimizer.zero_grad()
        for number in range(3 if step == 4 else 2):
            loss_of(model, run.batch()).backward()
            if step % 2 and number == 0:
                model.zero_grad()
        if step in (2, 3):
            continue
        optimizer.step()
        run.see(model, optimizer)


@program
def accumulated_to_an_uneven_end(run: Run) -> None:
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model, accumulate=3)
    for passes in (3, 3, 2):
        optimizer.zero_grad(set_to_none=passes == 2)
        for _ in range(passes):
            (loss_of(model, run.batch()) / passes).backward()
        optimizer.step()
        run.see(model, optimizer)


@program
def assigned_gradients(run: Run) -> None:
    """From ``autograd.grad``; and replaced after a backward pass."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, run.batch())
        if step % 2:
            for weight, gradient in zip(
                model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
            ):
                weight.grad = gradient
        else:
            loss.backward()
            for weight in model.parameters():
                weight.grad = weight.grad.clamp(-0.01, 0.01)
        optimizer.step()
        run.see(model, optimizer)


@program
def two_optimizers_of_one_model(run: Run) -> None:
    model = perceptron(20)
    first = run.wrap(momentum(model[:2].parameters()), model)
    second = run.wrap(torch.optim.AdamW(model[2:].parameters()), model)
    for _ in range(3):
        first.zero_grad(), second.zero_grad()
        loss_of(model, run.batch()).backward()
        first.step(), second.step()
        run.see(model, first, second)


class Features(nn.Module):
    """Random features that no checkpoint has, a scale in bfloat16, and a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(FEATURES, 7), persistent=False)
        self.register_buffer("count", torch.randint(100, ()))
        self.scale = nn.Parameter(torch.rand(7).bfloat16(), requires_grad=False)
        self.table = {"offset": float(torch.rand(()))}
        self.head = nn.Linear(7, 1)

    def get_extra_state(self) -> Any:
        return self.table

    def set_extra_state(self, state: Any) -> None:
        self.table = state

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(torch.cos(x @ self.directions) * self.scale.float() + self.table["offset"])


@program
def everything_is_given_to_all(run: Run) -> None:
    model = Features()
    optimizer = run.wrap(momentum(model.parameters()), model)
    train(run, model, optimizer)


@program
def sparse_embeddings(run: Run) -> None:
    for make in (torch.optim.SGD, torch.optim.SparseAdam):
        model = nn.Sequential(nn.Embedding(30, 4, sparse=True), nn.Flatten(), nn.Linear(12, 1))
        optimizer = run.wrap(make(model[0].parameters(), lr=0.1), model)
        other = run.wrap(momentum(model[2].parameters()), model)
        for _ in range(3):
            optimizer.zero_grad(), other.zero_grad()
            model(run.words(30)).square().mean().backward()
            optimizer.step(), other.step()
            run.see(model, optimizer, other)


@program
def line_searches(run: Run) -> None:
    """LBFGS decides by the loss how often it calls the closure."""
    model = perceptron().double()  # rounding decides where a search ends
    optimizer = run.wrap(torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe"), model)
    x = run.batch().double()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        return loss

    for _ in range(2):
        run.see(model, loss=optimizer.step(closure).item())


@program
def schedule_by_the_mean_loss(run: Run) -> None:
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters(), 0.5), model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_of(model, run.batch())
        loss.backward()
        optimizer.step()
        scheduler.step(run.mean(loss))
        run.see(model, optimizer)


@program
def smaller_last_batch(run: Run) -> None:
    model = perceptron()
    averaged = torch.optim.swa_utils.AveragedModel(model) if run.joint else None
    optimizer = run.wrap(momentum(model.parameters()), model)
    averaged = averaged or torch.optim.swa_utils.AveragedModel(model)
    for samples in (4, 4, 1):
        optimizer.zero_grad()
        loss_of(model, run.batch(FEATURES, per_rank=samples)).backward()
        optimizer.step()
        averaged.update_parameters(model)
        run.see(model, optimizer)
    run.see(averaged)


@program
def synchronized_normalization(run: Run) -> None:
    """Over all ranks' batches, which have different sizes in the end; the copy for evaluation is not synchronized."""
    images = nn.Sequential(nn.Unflatten(1, (2, 2)), nn.BatchNorm1d(2, momentum=None, affine=False), nn.Flatten())
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Tanh(), images, nn.Linear(4, 1)).double()
    if not run.joint:
        synchronize_batch_norm(model, WORLD)
    optimizer = run.wrap(momentum(model.parameters()), model)
    x = run.batch().double()
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
        run.see(model, optimizer)
    run.see(copy.deepcopy(model).eval(), predictions=model.eval()(torch.ones(1, FEATURES).double()).detach())
    sizes = [4 if rank == 0 else 2 for rank in range(WORLD.size)]
    if run.joint:
        samples = torch.cat([part[:size] for part, size in zip(x.chunk(WORLD.size), sizes, strict=True)])
    else:
        samples = x[: sizes[WORLD.rank]]
    optimizer.zero_grad()
    share = 1 if run.joint else WORLD.size
    (model.train()(samples).square().sum() * share).backward()
    optimizer.step()
    run.see(model, optimizer)


@program
def checkpoints_and_hooks(run: Run) -> None:
    """Recomputed layers, in both ways, and a hook that changes a gradient."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)
    model[4].weight.register_hook(lambda gradient: gradient * 0.5)
    for reentrant in (False, True):

        def recomputed(x: torch.Tensor, reentrant: bool = reentrant) -> Any:
            h = checkpoint(model[:2], x.clone().requires_grad_(), use_reentrant=reentrant)
            return model[4](checkpoint(model[2:4], h, use_reentrant=reentrant))

        for _ in range(2):
            optimizer.zero_grad()
            loss_of(recomputed, run.batch()).backward()
            optimizer.step()
            run.see(model, optimizer)


def distributed(model: nn.Module, **options: Any) -> Any:
    return DistributedOptimizer(momentum(model.parameters()), model, WORLD, **options)


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
    loss_of(model, torch.ones(2, FEATURES)).backward()


def shapeless() -> None:
    distributed(nn.Sequential(nn.LazyLinear(3)))


def other_buffers() -> None:
    model = perceptron()
    model.register_buffer("table", torch.zeros(WORLD.rank))
    distributed(model)


def layers_shared_by_checkpoints() -> None:
    """The sum of such a layer has begun when its second gradient comes."""
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES))
    distributed(model, bucket_bytes=1)
    x = torch.ones(2, FEATURES, requires_grad=True)
    for _ in range(2):
        x = checkpoint(model, x, use_reentrant=True)
    (model(x).sum() + x.sum()).backward()


REFUSED = [
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
    layers_shared_by_checkpoints,
]


def refusals() -> dict[str, list[str]]:
    """What each rank raises for each of ``REFUSED``."""
    results = {}
    for act in REFUSED if WORLD.size > 1 else ():
        results[act.__name__.replace("_", " ")] = WORLD.allgather(error_of(act))
    return results


def error_of(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


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


def _replace(model: nn.Module) -> None:
    for weight in model.parameters():
        if weight.grad is not None:
            weight.grad = weight.grad.clamp(-0.02, 0.02)


def _drop(model: nn.Module) -> None:
    next(model.parameters()).grad = None


def _clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def _scale(model: nn.Module) -> None:
    for weight in model.parameters():
        if weight.grad is not None:
            weight.grad.mul_(0.5)


#: What a program does to its gradients.
TOUCHES = (_clip, _scale, _replace, _drop)


def drawn(run: Run, seed: int) -> None:
    """A program of random parts: freezing, passes, ways to clear, to change and to leave out gradients."""
    choice = random.Random(seed)
    body, spare, third = perceptron(), nn.Linear(FEATURES, 1), nn.Linear(FEATURES, 1)
    model = nn.ModuleDict({"body": body, "spare": spare, "third": third})
    held = nn.ModuleDict({"body": body, "spare": spare}) if choice.random() < 0.5 else body
    make = choice.choice([momentum, torch.optim.AdamW, torch.optim.RMSprop])
    optimizer = run.wrap(
        make([*body.parameters(), *spare.parameters()], lr=0.01),
        held,
        accumulate=choice.choice([1, 1, 2, 3]),
        bucket_bytes=choice.choice([1, 100, 2**20]),
        share_memory=choice.choice([True, False]),
    )
    clear = [
        optimizer.zero_grad,
        model.zero_grad,
        lambda: optimizer.zero_grad(set_to_none=False),
        lambda: model.zero_grad(set_to_none=False),
        lambda: None,
    ]
    grown = False
    for _ in range(10):
        layer = choice.choice([body[0], body[2], spare])
        if choice.random() < 0.4:
            layer.requires_grad_(not layer.weight.requires_grad)
        if not grown and choice.random() < 0.2:
            optimizer.add_param_group({"params": third.parameters(), "lr": 0.02})
            grown = True
        choice.choice(clear)()
        for _ in range(choice.choice([1, 1, 2, 3])):
            x = run.batch()
            loss = loss_of(body, x)
            heads = [spare, third] if grown else [spare]
            for head in choice.sample(heads, choice.randint(0, len(heads))):
                own = x if choice.random() < 0.5 else run.on_rank_0(x)
                if len(own):
                    loss = loss + head(own).square().sum() / len(x)
            loss.backward()
        touch = choice.choice([None, *TOUCHES])
        if touch and not run.joint:
            optimizer.synchronize()  # an accumulation may be unfinished
        if touch:
            touch(model)
        if choice.random() < 0.8:
            optimizer.step()
        elif not run.joint:
            optimizer.synchronize()
        run.see(model if grown else nn.ModuleDict({"body": body, "spare": spare}), optimizer)


def compare(act: Program) -> Any:
    """The largest difference between one process and any rank, or what was raised."""
    run, reference = Run(joint=False), Run(joint=True)
    torch.manual_seed(WORLD.rank)
    try:
        act(run)
        run.close()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    torch.manual_seed(0)
    act(reference)
    same = [key for key, _ in run.seen] == [key for key, _ in reference.seen]
    differences = [_difference(a, b) for (_, a), (_, b) in zip(run.seen, reference.seen, strict=False)]
    if not WORLD.allreduce(same and None not in differences, MPI.LAND):
        return "different"
    return WORLD.allreduce(max(each for each in differences if each is not None), MPI.MAX)


def _difference(one: Any, other: Any) -> float | None:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        distance = float((one.double() - other.double()).abs().max()) if one.shape == other.shape else math.nan
    elif isinstance(one, int | float) and isinstance(other, int | float):
        distance = float(abs(one - other))
    else:
        distance = 0.0 if one is None and other is None else math.nan
    return None if math.isnan(distance) else distance


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed in map(str, range(10)) if not sys.argv[2:] else filter(str.isdigit, sys.argv[2:]):
        PROGRAMS[seed] = partial(drawn, seed=int(seed))
    results: dict[str, Any] = {name: compare(PROGRAMS[name]) for name in sys.argv[2:] or PROGRAMS}
    if not sys.argv[2:]:
        results |= {"refused": refusals(), "failure": failure_on_the_last_rank(), "rebuilt": rebuilt()}
        results |= {"compressed": scaled_and_compressed()}
        results |= {"statistics": {choice: statistics(choice) for choice in ("average", "local")}}
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
