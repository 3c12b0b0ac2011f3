"""Programs of torch_oracle that change the memory of parameters and gradients, keep gradients, and hook on to them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_programs import program
from torch_runs import FEATURES, WORLD, Run, loss_of, momentum, perceptron, train

from hidl_workloads.training.data_parallel.torch_normalization import synchronize_batch_norm


def images(run: Run) -> torch.Tensor:
    return run.batch(3, 6, 6)


def convolutions() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 1, 4), nn.Flatten())


def halve(weight: torch.Tensor) -> None:
    weight.grad.data.mul_(0.5)


def see_steps(run: Run, model: nn.Module, optimizer: Any, steps: int = 2) -> None:
    """Train on images."""
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        model(images(run)).square().mean().backward()
        optimizer.step()
        run.see(model, optimizer)


@program
def gradients_in_other_memory(run: Run) -> None:
    """The same objects get new memory, between the passes and after them."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)
    flat = torch.zeros(sum(weight.numel() for weight in model.parameters()))
    for step in range(5):
        optimizer.zero_grad(set_to_none=step == 0)
        if step == 2:
            for weight, part in zip(
                model.parameters(), flat.split([w.numel() for w in model.parameters()]), strict=True
            ):
                weight.grad.data = part.view_as(weight)
        loss_of(model, run.batch()).backward()
        if step % 2:
            for weight in model.parameters():
                weight.grad.data = weight.grad.data * 0.5
        optimizer.step()
        run.see(model, optimizer)


@program
def converted_models(run: Run) -> None:
    """To other types and back, other orders in memory, and shared memory, with gradients that are kept."""
    model = convolutions()
    optimizer = run.wrap(momentum(model.parameters(), 0.01), model)
    see_steps(run, model, optimizer)
    model.double().float()
    see_steps(run, model, optimizer)
    model.to(memory_format=torch.channels_last)
    see_steps(run, model, optimizer)
    model.share_memory()
    see_steps(run, model, optimizer)
    model.to(memory_format=torch.contiguous_format)
    see_steps(run, model, optimizer)


@program
def orders_in_memory_of_each_rank(run: Run) -> None:
    """Rank 0 loads weights that are ordered otherwise, by assignment; another rank changes the order later."""
    model = convolutions()
    model.append(nn.Linear(1, 1))
    if run.joint or WORLD.rank == 0:
        state = copy.deepcopy(model.state_dict())
        state["0.weight"] = state["0.weight"].to(memory_format=torch.channels_last)
        state["2.weight"] = state["2.weight"].transpose(2, 3).contiguous().transpose(2, 3)
        model.load_state_dict(state, assign=True)
        model.requires_grad_(True)
    optimizer = run.wrap(momentum(model.parameters(), 0.01), model)
    see_steps(run, model, optimizer)
    if WORLD.rank:
        model.to(memory_format=torch.channels_last)
    for _ in range(2):
        optimizer.zero_grad()
        model(images(run)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # adds in another order on each rank
        optimizer.step()
        run.see(model, optimizer)


class Sliced(nn.Module):
    """Two layers whose weights are parts of one matrix, and one whose weight is transposed."""

    def __init__(self) -> None:
        super().__init__()
        matrix = torch.randn(6, 2 * FEATURES)
        self.left, self.right = nn.Parameter(matrix[:, :FEATURES]), nn.Parameter(matrix[:, FEATURES:])
        self.last = nn.Parameter(torch.randn(6, 1).T)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x @ self.left.T) * (x @ self.right.T)) @ self.last.T


@program
def slices(run: Run) -> None:
    model = Sliced()
    optimizer = run.wrap(momentum(model.parameters(), 0.01), model, bucket_bytes=2**20)
    train(run, model, optimizer)


@program
def kept_gradients(run: Run) -> None:
    """Two losses' gradients, of which one is projected (PCGrad); and the last step's (optimistic descent)."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters(), 0.01), model)
    last = [torch.zeros_like(weight) for weight in model.parameters()]
    for _ in range(4):
        x, kept = run.batch(), []
        for loss in (loss_of(model, x), model(x).abs().mean()):
            optimizer.zero_grad()
            loss.backward()
            kept.append([weight.grad for weight in model.parameters()])
        first, second = kept
        run.seen += [("first", torch.cat([each.flatten() for each in first]))]
        for weight, one, other, before in zip(model.parameters(), first, second, last, strict=True):
            overlap = torch.clamp((one * other).sum() / other.square().sum().clamp(min=1e-9), max=0)
            weight.grad = 2 * (one - overlap * other + other) - before
        last = second
        optimizer.step()
        run.see(model, optimizer)


@program
def offloaded_gradients(run: Run) -> None:
    """Each micro-batch's gradients are added up elsewhere, and copied back into tensors that stay."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    for _ in range(3):
        stored = [torch.zeros_like(weight) for weight in model.parameters()]
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            loss_of(model, run.batch()).backward()
            for weight, store in zip(model.parameters(), stored, strict=True):
                store.add_(weight.grad)
        for weight, store in zip(model.parameters(), stored, strict=True):
            weight.grad.copy_(store / 2)
        optimizer.step()
        run.see(model, optimizer)


@program
def gradients_written_in_place(run: Run) -> None:
    """From ``autograd.grad``, into those that a backward pass has left, and instead of it."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model)
    for step in range(4):
        optimizer.zero_grad(set_to_none=False)
        if step != 2:
            loss_of(model, run.batch()).backward()
        own = torch.autograd.grad(model(run.batch()).abs().mean(), list(model.parameters()))
        for weight, gradient in zip(model.parameters(), own, strict=True):
            weight.grad.add_(gradient, alpha=0.3)
        optimizer.step()
        run.see(model, optimizer)


@program
def expanded_gradients(run: Run) -> None:
    """The gradient of a sum, which is one number in memory, assigned."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters(), 0.01), model)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, run.batch()).backward()
        model[0].weight.grad = torch.ones(()).expand(FEATURES, FEATURES)
        optimizer.step()
        run.see(model, optimizer)


@program
def hooks_of_any_order(run: Run) -> None:
    """Before the wrap, after it, on the engine's node, and one that changes all parameters' gradients."""
    model = perceptron()
    model[0].weight.register_post_accumulate_grad_hook(halve)
    optimizer = run.wrap(momentum(model.parameters()), model)
    handles = [model[2].weight.register_post_accumulate_grad_hook(halve)]
    node = model[4].weight.view_as(model[4].weight).grad_fn.next_functions[0][0]
    train(run, model, optimizer)
    handles.append(node.register_hook(lambda *_: halve(model[4].weight)))
    train(run, model, optimizer)
    for handle in handles:
        handle.remove()

    def shrink(_: torch.Tensor) -> None:
        for weight in model.parameters():
            if weight.grad is not None:
                weight.grad.data.mul_(0.9)

    for position in (0, 4):
        model[position].weight.register_post_accumulate_grad_hook(shrink)
        train(run, model, optimizer)


@program
def gradients_changed_by_tensor_hooks(run: Run) -> None:
    """The hook of an activation changes gradients of layers behind it, whose sums have begun."""
    model = perceptron()
    optimizer = run.wrap(momentum(model.parameters()), model, bucket_bytes=1)

    def double(gradient: torch.Tensor) -> None:
        for weight in model[4].parameters():
            if weight.grad is not None:
                weight.grad.mul_(2)

    for _ in range(3):
        optimizer.zero_grad()
        x = run.batch()
        h = model[0](x)
        h.register_hook(double)
        (model[1:](h) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        run.see(model, optimizer)


@program
def hooks_on_sparse_gradients(run: Run) -> None:
    """On a table that is also used as a dense matrix in the last step."""
    model = nn.Sequential(nn.Embedding(30, 4, sparse=True), nn.Flatten(), nn.Linear(12, 1))
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)

    def replace(weight: torch.Tensor) -> None:
        weight.grad = weight.grad * 0.5

    model[0].weight.register_post_accumulate_grad_hook(replace)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(run.words(30)).square().mean()
        if step == 2:
            loss = loss + model[0].weight.square().mean()
        loss.backward()
        optimizer.step()
        run.see(model, optimizer)


@program
def sparse_gradients_changed_in_place(run: Run) -> None:
    """Not alike on all ranks: their mean is what steps."""
    model = nn.Sequential(nn.Embedding(30, 4, sparse=True), nn.Flatten(), nn.Linear(12, 1))
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for _ in range(3):
        optimizer.zero_grad()
        model(run.words(30)).square().mean().backward()
        factor = 1 + (WORLD.size - 1) / 2 if run.joint else 1 + WORLD.rank
        model[0].weight.grad._values().mul_(factor)
        optimizer.step()
        run.see(model, optimizer)


@program
def layers_shared_by_checkpoints(run: Run) -> None:
    """The sum of such a layer has begun when its second gradient comes."""
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES))
    optimizer = run.wrap(momentum(model.parameters(), 0.01), model, bucket_bytes=1)
    for _ in range(3):
        optimizer.zero_grad()
        x = run.batch().requires_grad_()
        h = x
        for _ in range(2):
            h = checkpoint(model, h, use_reentrant=True)
        (model(h).square().mean() + h.mean()).backward()
        optimizer.step()
        run.see(model, optimizer)


@program
def second_module_with_buffers(run: Run) -> None:
    """Given to the averager as part of one model, whose buffers are then those of rank 0."""
    model, second = perceptron(), nn.Linear(1, 1)
    both = nn.ModuleList([model, second])
    both.register_buffer("offset", torch.randn(1))
    optimizer = run.wrap(momentum(both.parameters()), both)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(lambda x: second(model(x)) + both.offset, run.batch()).backward()
        optimizer.step()
        run.see(both, optimizer)


class Stages(nn.Module):
    """Has a buffer that all ranks change alike, one that follows from the weights, and a table that is not kept."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stage", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.ones(1), persistent=False)
        self.body = perceptron()
        self.head = nn.utils.parametrizations.spectral_norm(nn.Linear(1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stage = self.stage + 1
        self.table = x.detach().abs().sum(1, keepdim=True)
        y: torch.Tensor = self.head(self.body(x)) * (1 + 0.1 * self.stage) * self.table / self.table
        return y


@program
def buffers_changed_alike(run: Run) -> None:
    model = Stages()
    optimizer = run.wrap(momentum(model.parameters(), lr=0.01), model)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, run.batch()).backward()
        optimizer.step()
        run.see(model.body, optimizer)
        run.see(model.head)
        run.seen.append(("stage", model.stage.clone()))


@program
def statistics_of_averaged_weights(run: Run) -> None:
    """By update_bn, over the batches of all ranks."""
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double().eval()
    optimizer = run.wrap(momentum(model.parameters()), model)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, run.batch().double()).backward()
        optimizer.step()
        averaged.update_parameters(model)
    if not run.joint:
        synchronize_batch_norm(averaged, WORLD)
    torch.optim.swa_utils.update_bn([run.batch().double() for _ in range(3)], averaged.train())
    run.see(averaged)
