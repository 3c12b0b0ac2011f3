"""Programs drawn from a seed that change memory, hook on to gradients and keep them: cases of torch_oracle.

A quarter of them train on the simulated GPU on ranks, and on the host in one process.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import simulated_gpu
import torch
from torch import nn
from torch_runs import FEATURES, WORLD, Run, momentum, perceptron

SHARED = 140
"""Elements of a layer whose gradients are large enough to be summed in shared memory."""
Parts = list[nn.Parameter]
HOST = torch.device("cpu")


@cache
def gpu() -> torch.device:
    """Return the simulated GPU; the first call precedes the first backward pass of a process."""
    return simulated_gpu.install()


class Program:
    """A model, its optimizers and hooks, and what a step may do to them; drawn alike on ranks and in one process."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run, self.seed, self.choice = run, seed, random.Random(seed)
        self.images = self.choice.random() < 0.3
        self.type = self.choice.choice([torch.float32, torch.float64])
        on_gpu = random.Random(f"device {seed}").random() < 0.25
        self.device = gpu() if on_gpu and not run.joint else HOST
        body = self._convolutions() if self.images else perceptron(self.choice.choice([FEATURES, SHARED]))
        self.body, self.spare, self.late = body.to(self.type).to(self.device), self._head(), self._head()
        self.model = nn.ModuleDict({"body": self.body, "spare": self.spare})
        self.grown = False
        self.kept: list[torch.Tensor] = []
        self.handles: list[Any] = []
        self.doubles = False
        if self.choice.random() < 0.3:
            self.hook()  # before the optimizer is wrapped
        self.optimizers = self._wrapped()

    def _convolutions(self) -> nn.Module:
        width = self.choice.choice([4, 64])
        layers = nn.Conv2d(3, width, 3), nn.Tanh(), nn.Conv2d(width, width, 2), nn.Tanh(), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(4 * width, 1))

    def _head(self) -> nn.Module:
        return nn.Linear(FEATURES, 1, dtype=self.type).to(self.device)

    def _wrapped(self) -> list[Any]:
        # The others divide by gradients, and so make large differences of float32's rounding, which a change of the
        # type and back brings into float64 too.
        adaptive = [partial(each, eps=1e-3) for each in (torch.optim.AdamW, torch.optim.RMSprop)]
        adaptive = adaptive if self.type == torch.float64 else []
        make = self.choice.choice([momentum, *adaptive])
        options = {
            "accumulate": self.choice.choice([1, 1, 1, 2]),
            "bucket_bytes": self.choice.choice([1, 1000, 2**17, 2**20]),
            "share_memory": self.choice.random() < 0.8,
            "gpu_buffers": random.Random(f"buffers {self.seed}").choice(["auto", "staged"]),
        }
        beside = self.choice.random() < 0.3  # the second module's parameters are known to the optimizer alone
        held = self.body if beside else self.model
        groups = [[*self.body.parameters(), *self.spare.parameters()]]
        if not beside and self.choice.random() < 0.3:
            groups = [list(self.body.parameters()), list(self.spare.parameters())]
        elif not beside and self.choice.random() < 0.3:
            groups = [[weight] for weight in self.model.parameters()]
        return [self.run.wrap(make(group, lr=0.01), held, **options) for group in groups]

    def parameters(self) -> Parts:
        late = self.late.parameters() if self.grown else ()
        return [*self.model.parameters(), *late]

    def some(self) -> nn.Parameter:
        return self.choice.choice(self.parameters())

    def some_of_the_body(self) -> nn.Parameter:
        """One that requires gradients, of the layers that no program freezes as a whole."""
        weights = [weight for weight in self.body.parameters() if weight.requires_grad]
        return self.choice.choice(weights or list(self.body.requires_grad_(True).parameters()))

    def here(self) -> bool:
        """Draw the ranks that change memory; return True on these, and in the joint run."""
        ranks = self.choice.choice([range(WORLD.size), [0], [WORLD.size - 1]])
        return self.run.joint or WORLD.rank in ranks

    # What changes memory.

    def channels_last(self) -> None:
        if self.here() and self.images:
            self.model.to(memory_format=torch.channels_last)

    def contiguous(self) -> None:
        if self.here() and self.images:
            self.model.to(memory_format=torch.contiguous_format)

    def other_type_and_back(self) -> None:
        other = torch.float64 if self.type == torch.float32 else torch.float32
        self.model.to(other).to(self.type)  # on all ranks: it ends the hooks on nodes

    def shared_memory(self) -> None:
        if self.here() and self.device == HOST:
            self.model.share_memory()

    def moved_and_back(self) -> None:
        """Move everything to another device and back, as programs do around a save."""
        if self.here() and not self.run.joint:
            other = gpu() if self.device == HOST else HOST
            self.model._apply(lambda tensor: tensor.to(other).to(self.device))

    def new_gradients(self) -> None:
        if self.here():
            for weight in self.parameters():
                if weight.grad is not None:
                    weight.grad.data = weight.grad.data.clone()

    def transposed(self) -> None:
        weight = self.some()
        if self.here() and weight.dim() > 1:
            weight.data = weight.data.transpose(0, 1).contiguous().transpose(0, 1)

    def sliced(self) -> None:
        weight = self.some()
        if self.here() and weight.dim() > 1:
            larger = weight.new_zeros(weight.shape[0], weight.shape[1] + 3, *weight.shape[2:])
            larger[:, : weight.shape[1]] = weight.detach()
            weight.data = larger[:, : weight.shape[1]]

    # What hooks on to gradients.

    def hook(self) -> None:
        self.handles.append(self.some_of_the_body().register_post_accumulate_grad_hook(_halve))

    def hook_that_assigns(self) -> None:
        weight = self.some_of_the_body()

        def assign(weight: torch.Tensor) -> None:
            weight.grad = weight.grad * 0.75

        self.handles.append(weight.register_post_accumulate_grad_hook(assign))

    def hook_on_all(self) -> None:
        def shrink(_: torch.Tensor) -> None:
            for weight in self.parameters():
                if weight.grad is not None:
                    weight.grad.data.mul_(0.9)

        self.handles.append(self.some_of_the_body().register_post_accumulate_grad_hook(shrink))

    def hook_on_a_node(self) -> None:
        weight = self.some_of_the_body()
        node = weight.view_as(weight).grad_fn.next_functions[0][0]
        self.handles.append(node.register_hook(lambda *_: _halve(weight)))
        self.handles.append(_Kept(node))

    def hook_on_an_activation(self) -> None:
        self.doubles = not self.doubles

    def no_hooks(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    # What changes what is trained.

    def freeze(self) -> None:
        weight = self.some()
        weight.requires_grad_(not weight.requires_grad)

    def grow(self) -> None:
        if not self.grown and len(self.optimizers) < 3:
            self.optimizers[0].add_param_group({"params": list(self.late.parameters()), "lr": 0.02})
            self.grown = True

    # What happens to averages.

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)

    def clamp(self) -> None:
        for weight in self.parameters():
            if weight.grad is not None:
                weight.grad = weight.grad.clamp(-0.02, 0.02)

    def drop(self) -> None:
        self.some().grad = None

    def keep(self) -> None:
        self.kept = [weight.grad for weight in self.parameters() if weight.grad is not None]

    def use_kept(self) -> None:
        for weight, kept in zip(self.parameters(), self.kept, strict=False):
            if weight.grad is not None and weight.shape == kept.shape:
                weight.grad = weight.grad - 0.5 * kept

    def other_memory(self) -> None:
        for weight in self.parameters():
            if weight.grad is not None:
                weight.grad.data = weight.grad.data * 0.5

    def add_own_term(self) -> None:
        for weight, term in self._own_terms():
            weight.grad.add_(term, alpha=0.3)
        self._average()  # what is clipped next must be averages

    def own_term_in_other_memory(self) -> None:
        for weight, term in self._own_terms():
            weight.grad.data = weight.grad + 0.3 * term
        self._average()

    def _own_terms(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Return the parameters that have gradients, each with the gradient of another loss."""
        weights = [weight for weight in self.parameters() if weight.requires_grad and weight.grad is not None]
        if not weights:
            return []
        terms = torch.autograd.grad(self.loss(), weights, allow_unused=True)
        return [(weight, term) for weight, term in zip(weights, terms, strict=True) if term is not None]

    def loss(self) -> torch.Tensor:
        """The mean over the samples, of the body and some of the heads, which may have rank 0's samples alone.

        A hook changes what is there on the ranks where it runs, and so has to run on all.
        """
        inputs = self.run.batch(3, 5, 5) if self.images else self.run.batch()
        features = self.run.batch().to(self.device, self.type)
        h = self.body[0](inputs.to(self.device, self.type))
        if self.doubles and h.requires_grad:
            h.register_hook(self._double_the_last)
        loss = self.body[1:](h).square().mean()
        for head in (self.spare, self.late) if self.grown else (self.spare,):
            if self.choice.random() < 0.6:
                own = features if self.choice.random() < 0.5 or self.handles else self.run.on_rank_0(features)
                if len(own):
                    loss = loss + head(own).square().sum() / len(features)
        return loss

    def _double_the_last(self, _: torch.Tensor) -> None:
        for weight in self.body[-1].parameters():
            if weight.grad is not None:
                weight.grad.mul_(1.5)

    def step(self) -> None:
        memory = [self.channels_last, self.contiguous, self.other_type_and_back, self.shared_memory]
        memory += [self.new_gradients, self.transposed, self.sliced, self.moved_and_back]
        hooks = [self.hook, self.hook_that_assigns, self.hook_on_all, self.hook_on_a_node, self.hook_on_an_activation]
        others = [self.no_hooks, self.freeze, self.grow]
        touches = [self.clip, self.clamp, self.drop, self.keep, self.keep, self.use_kept, self.other_memory]
        touches += [self.add_own_term, self.own_term_in_other_memory]
        self._some_of(memory, 0.5)
        self._some_of(hooks, 0.2)
        self._some_of(others, 0.2)
        clears, to_none = self.choice.random() < 0.9, self.choice.random() < 0.7
        for optimizer in self.optimizers if clears else ():
            optimizer.zero_grad(set_to_none=to_none)
        if not (clears and to_none):
            self.kept.clear()  # the next pass adds to them, before hooks may replace them
        for _ in range(self.choice.choice([0, 1, 1, 1, 1, 2])):
            loss = self.loss()
            if loss.requires_grad:
                loss.backward()
            self._some_of(memory, 0.1)
        self._average()
        self._some_of(touches, 0.7)
        for optimizer in self.optimizers if self.choice.random() < 0.8 else ():
            optimizer.step()
        self._average()
        self.see()

    def _some_of(self, acts: list[Callable[[], None]], probability: float) -> None:
        while self.choice.random() < probability:
            self.choice.choice(acts)()

    def _average(self) -> None:
        if not self.run.joint:
            self.optimizers[0].synchronize()

    def see(self) -> None:
        self.run.see(nn.ModuleDict({"model": self.model, "late": self.late}) if self.grown else self.model)
        for optimizer in self.optimizers:
            self.run.see(nn.Module(), optimizer)
        self.run.seen += [("kept", kept.detach().clone()) for kept in self.kept]


class _Kept:
    """Keeps a node of the graph, whose hooks would be gone with it."""

    def __init__(self, node: Any) -> None:
        self.node = node

    def remove(self) -> None:
        """Let go of it."""
        self.node = None


def _halve(weight: torch.Tensor) -> None:
    if weight.grad is not None:
        weight.grad.data.mul_(0.5)


def drawn(run: Run, seed: int) -> None:
    """Six steps of such a program."""
    program = Program(run, seed)
    for _ in range(6):
        program.step()
