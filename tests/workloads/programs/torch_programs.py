"""The programs of torch_oracle, by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_runs import FEATURES, WORLD, Run, loss_of, momentum, perceptron, train

from hidl_workloads.training.data_parallel.torch_normalization import synchronize_batch_norm

Program = Callable[[Run], None]
PROGRAMS: dict[str, Program] = {}


def program(act: Program) -> Program:
    PROGRAMS[act.__name__.replace("_", " ")] = act
    return act


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
def accumulations_begun_again(run: Run) -> None:
    """After their first pass, by the optimizer's ``zero_grad``; what is clipped then must be averages."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model, accumulate=2)
    for step in range(4):
        optimizer.zero_grad()
        for number in range(3):
            loss_of(model, run.batch()).backward()
            if number == 0:
                optimizer.zero_grad(set_to_none=step % 2 == 0)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
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
def averaged_weights(run: Run) -> None:
    """EMA and SWA with its learning rate, as torch.optim.swa_utils has them."""
    swa = torch.optim.swa_utils
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)
    moving = swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(0.7))
    averaged, schedule = swa.AveragedModel(model), swa.SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
    for step in range(5):
        train(run, model, optimizer, steps=1)
        moving.update_parameters(model)
        if step > 1:
            averaged.update_parameters(model)
            schedule.step()
        run.see(moving, optimizer)
        run.see(averaged)
    x = torch.ones(1, FEATURES)
    run.see(model, moving=moving(x).detach(), averaged=averaged(x).detach())


class Adapted(nn.Module):
    """A frozen layer and a product of two small matrices (LoRA)."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) + x @ self.down.T @ self.up.T

    def merged(self) -> nn.Linear:
        with torch.no_grad():
            self.layer.weight += self.up @ self.down
        return self.layer


@program
def low_rank_adapters(run: Run) -> None:
    """LoRA in two layers; merged, and all trained again."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)
    train(run, model, optimizer)
    model[0], model[2] = Adapted(model[0]), Adapted(model[2])
    model[4].requires_grad_(False)
    adapters = run.wrap(torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=0.05), model)
    train(run, model, adapters)
    model[0], model[2] = model[0].merged(), model[2].merged()
    model.requires_grad_(True)
    train(run, model, optimizer)


@program
def gradient_penalty(run: Run) -> None:
    """Second derivatives in each sample's loss, through the layers that the penalty trains."""
    model = perceptron().double()
    optimizer = run.wrap(momentum(model.parameters(), 0.01), model)
    for _ in range(3):
        x = run.batch().double().requires_grad_()
        optimizer.zero_grad()
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        ((slope.norm(dim=1) - 1).square().mean() + y.square().mean()).backward()
        optimizer.step()
        run.see(model, optimizer)


class Rounded(torch.autograd.Function):
    """Rounds, and passes gradients straight through, scaled."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        return (x * scale).round() / scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, scale = ctx.saved_tensors
        return gradient, (gradient * x).sum() / scale


@program
def functions_with_gradients_of_their_own(run: Run) -> None:
    model, scale = perceptron(), nn.Parameter(torch.tensor(64.0))
    optimizer = run.wrap(momentum([*model.parameters(), scale], 0.01), model)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, Rounded.apply(run.batch(), scale)).backward()
        optimizer.step()
        run.see(model, optimizer, scale=scale.detach().clone())


@program
def compiled(run: Run) -> None:
    """By torch.compile, without a compiler for C++."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)
    graph = torch.compile(model, backend="aot_eager")
    for step in range(4):
        model[2].requires_grad_(step != 2)
        optimizer.zero_grad()
        loss_of(graph, run.batch()).backward()
        optimizer.step()
        run.see(model, optimizer)


@program
def compiled_steps(run: Run) -> None:
    """The optimizer's ``step`` by torch.compile, as PyTorch's tutorial has it."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)
    step = torch.compile(optimizer.step, backend="eager", fullgraph=False)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, run.batch()).backward()
        step()
        run.see(model, optimizer)


@program
def compiled_whole_steps(run: Run) -> None:
    """Forward and backward pass, the step and the clearing of gradients in one compiled function."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = torch.compile(step, backend="eager")
    for _ in range(3):
        compiled(run.batch())
        run.see(model, optimizer)


@program
def epochs_that_end_with_the_shortest(run: Run) -> None:
    """Rank 0 has two batches, and each other rank one more than that before it."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)
    for _ in range(2):
        batches = [run.batch() for _ in range(2)]
        batches += [torch.zeros_like(batches[0])] * WORLD.rank
        for x in batches[:2] if run.joint else optimizer.batches(batches, uneven="stop"):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
        run.see(model, optimizer)


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
