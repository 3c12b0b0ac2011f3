"""Programs that train with PyTorch, each in one process on the joint batches and on ranks with their parts.

What they can see (parameters, buffers, gradients, optimizer state, settings, losses) is compared. Written as JSON to
argv[1]: for each case the largest difference, "different" where one has something that the other lacks, and what was
raised. With argv[2:], only those cases, which may be seeds of programs that are drawn; those of torch_drawn begin with
"memory:".
"""

from __future__ import annotations

import json
import math
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch_drawn
import torch_own_gradients  # noqa: F401 - adds programs
from mpi4py import MPI
from torch import nn
from torch_programs import PROGRAMS, Program
from torch_refused import (
    failure_on_the_last_rank,
    narrow_normalization,
    rebuilt,
    refusals,
    scaled_and_compressed,
    statistics,
)
from torch_runs import FEATURES, WORLD, Run, loss_of, momentum, perceptron

MEMORY = "memory:"


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
    raised = ""
    try:
        act(run)
        run.close()
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    if any(everywhere := WORLD.allgather(raised)):
        return next(filter(None, everywhere))
    torch.manual_seed(0)
    act(reference)
    same = [key for key, _ in run.seen] == [key for key, _ in reference.seen]
    differences = [_difference(a, b) for (_, a), (_, b) in zip(run.seen, reference.seen, strict=False)]
    if not WORLD.allreduce(same and None not in differences, MPI.LAND):
        return "different"
    return WORLD.allreduce(max(each for each in differences if each is not None), MPI.MAX)


def _difference(one: Any, other: Any) -> float | None:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        one, other = one.cpu().double(), other.cpu().double()
        distance = float((one - other).abs().max()) if one.shape == other.shape else math.nan
    elif isinstance(one, int | float) and isinstance(other, int | float):
        distance = float(abs(one - other))
    else:
        distance = 0.0 if one is None and other is None else math.nan
    return None if math.isnan(distance) else distance


if __name__ == "__main__":
    torch.set_num_threads(1)
    for word in sys.argv[2:] or [*map(str, range(10)), *(f"{MEMORY}{seed}" for seed in range(40))]:
        if word.isdigit():
            PROGRAMS[word] = partial(drawn, seed=int(word))
        elif word.startswith(MEMORY):
            torch_drawn.gpu()
            PROGRAMS[word] = partial(torch_drawn.drawn, seed=int(word.removeprefix(MEMORY)))
    results: dict[str, Any] = {name: compare(PROGRAMS[name]) for name in sys.argv[2:] or PROGRAMS}
    if not sys.argv[2:]:
        results |= {"refused": refusals(), "failure": failure_on_the_last_rank(), "rebuilt": rebuilt()}
        results |= {"compressed": scaled_and_compressed(), "narrow": narrow_normalization()}
        results |= {"statistics": {choice: statistics(choice) for choice in ("average", "local")}}
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
