"""Training of a GPT-style decoder on synthetic text with PyTorch, in replicas, shards, tensor parallelism or stages.

``python -m hidl_workloads.gpt --layers=12 --width=768 --heads=12 --context=1024`` is GPT-2 small; ``--help`` lists the
parameters.
"""

from __future__ import annotations

import math
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hidl_workloads.parameters import Gpt
from hidl_workloads.training.model import Batch, DataSet, Model

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI

_DEVIATION = 0.02  # of the initial weights


class GPT(Model):
    """Sequences of tokens, of files or random ones, in which each token is predicted from those before it."""

    title = "GPT"
    items = "tokens"
    label = "Tokens"

    def __init__(self, parameters: Gpt) -> None:
        """Raise ``ValueError`` if the heads do not divide the width."""
        if parameters.width % parameters.heads:
            raise ValueError(f"width={parameters.width} must be a multiple of heads={parameters.heads}")
        self._parameters = parameters
        self.recomputes = parameters.recompute == "always"

    def items_per_step(self) -> int:
        """Return the tokens of a step."""
        return self._parameters.batch * self._parameters.context

    def describe_batch(self) -> str:
        """Return the sequences of a batch and their length."""
        return f"{self._parameters.batch} per rank, sequences of {self._parameters.context} tokens"

    def make_batch(self, random: np.random.Generator) -> Batch:
        """Return sequences, and the same sequences one token further on."""
        shape = (self._parameters.batch, self._parameters.context + 1)
        tokens = random.integers(self._parameters.vocabulary, size=shape)
        return Batch(np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:]))

    def open_data(self, communicator: MPI.Comm, path: Path) -> DataSet:
        """Open arrays of tokens."""
        from hidl_workloads.training.data import TokenData

        parameters = self._parameters
        return TokenData(communicator, path, context=parameters.context, vocabulary=parameters.vocabulary)

    def flops_per_item(self) -> float:
        """Return the floating-point operations of a training step per token.

        6 for each weight, and 12 for each element of a token's vector and each of its predecessors' in a block's
        attention: Chowdhery et al., PaLM (2022), appendix B. Positions are looked up, not multiplied; what is computed
        again does not count.
        """
        parameters = self._parameters
        width, layers = parameters.width, parameters.layers
        of_blocks = layers * (12 * width**2 + 13 * width)
        weights = of_blocks + parameters.vocabulary * width + 2 * width
        return 6 * weights + 12 * layers * width * parameters.context

    def torch_network(self, *, empty: bool = False) -> Any:
        """Return the network; if ``empty``, its weights have no memory yet."""
        return torch_network(self._parameters, empty=empty, recomputes=self.recomputes)


def torch_network(parameters: Gpt, *, empty: bool = False, recomputes: bool = False) -> Any:
    """Return the decoder of GPT-2, without dropout: 124,439,808 parameters as GPT-2 small.

    Radford et al., Language Models are Unsupervised Multitask Learners (2019): normalisation before each part of a
    block, learned positions, and one matrix for the embedding and the output.

    Args:
        parameters: of the workload.
        empty: leave the weights without memory, for ranks that keep a part of them and then call ``fill``.
        recomputes: keep only the input of each block for the backward pass.
    """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    width, heads = parameters.width, parameters.heads

    class Block(nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
        """Causal self-attention and a perceptron of four times the width, each added to its input."""

        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Map (N, T, width) to the same shape."""
            if recomputes and torch.is_grad_enabled():
                return checkpoint(self.compute, x, use_reentrant=False, preserve_rng_state=False)
            return self.compute(x)

        def compute(self, x: torch.Tensor) -> torch.Tensor:
            """Compute ``forward``. The rows of ``qkv`` are grouped by head, thus a rank may have those of some."""
            by_head = self.qkv(self.norm1(x)).unflatten(-1, (-1, 3, width // heads)).transpose(1, 2)
            query, key, value = by_head.unbind(-2)
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.attended(mixed.transpose(1, 2).flatten(-2))
            return x + self.contract(nn.functional.gelu(self.expand(self.norm2(x)), approximate="tanh"))

    class Decoder(nn.Module):  # type: ignore[misc]
        """The network, or a stage of it, which lacks the embedding, some blocks, or the output."""

        def __init__(self) -> None:
            super().__init__()
            self.is_stage = False
            self.tokens: Any = nn.Embedding(parameters.vocabulary, width)
            self.positions: Any = nn.Embedding(parameters.context, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(parameters.layers)))
            self.norm: Any = nn.LayerNorm(width)
            self.output: Any = nn.Linear(width, parameters.vocabulary, bias=False)
            self.tie()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Map tokens (N, T) to logits (N, T, vocabulary); a stage begins or ends with (N, T, width)."""
            if self.tokens is not None:
                x = self.tokens(x) + self.positions.weight[: x.shape[1]]
            x = self.blocks(x)
            return x if self.output is None else self.output(self.norm(x))

        def tie(self) -> None:
            """Make the output's matrix the embedding's."""
            if self.tokens is not None and self.output is not None:
                self.output.weight = self.tokens.weight

        def cut(self, stage: int, stages: int) -> None:
            """Keep one of several stages, whose blocks keep their names."""
            share = [parameters.layers * each // stages for each in (stage, stage + 1)]
            kept = list(self.blocks.named_children())[share[0] : share[1]]
            self.blocks = nn.Sequential(OrderedDict(kept))
            self.is_stage = stages > 1
            if stage > 0:
                self.tokens = self.positions = None
            if stage < stages - 1:
                self.norm = self.output = None

        def fill(self, put: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
            """Draw the initial weights, each from torch's seed and its name, and ``put`` them into the parameters."""
            for name, weight in self.named_parameters():
                values = torch.zeros(weight.shape)  # the whole parameter's values, even if the weight is a shard
                if name.endswith("weight") and weight.dim() == 1:
                    values.fill_(1)
                elif not name.endswith("bias"):
                    # The more blocks there are, the smaller is the value added to a block's input.
                    added = name.endswith(("attended.weight", "contract.weight"))
                    drawn = zlib.crc32(name.replace("output.", "tokens.").encode())
                    generator = torch.Generator().manual_seed(torch.initial_seed() ^ drawn)
                    deviation = _DEVIATION / (math.sqrt(2 * parameters.layers) if added else 1)
                    values.normal_(std=deviation, generator=generator)
                put(weight.detach(), values)

        def tensor_plan(self) -> dict[str, Any]:
            """Return how tensor parallelism divides the matrices; the logits stay divided by the vocabulary."""
            from torch.distributed.tensor import Replicate, Shard
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

            of_block = {
                "qkv": ColwiseParallel(),
                "attended": RowwiseParallel(),
                "expand": ColwiseParallel(),
                "contract": RowwiseParallel(),
            }
            return {
                "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
                "output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
                **{f"blocks.*.{name}": style for name, style in of_block.items()},
            }

    with torch.device("meta"):
        network = Decoder()
    if not empty:
        network.to_empty(device="cpu")
        network.tie()
        network.fill(lambda weight, values: weight.copy_(values))
    return network


if __name__ == "__main__":
    from hidl_workloads.training.program import main

    main("gpt", Gpt, GPT)
