"""Data-parallel training of a GPT-style decoder on synthetic text, with PyTorch.

``python -m hidl_workloads.gpt --layers=12 --width=768 --heads=12 --context=1024`` is GPT-2 small; ``--help`` lists the
parameters.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hidl_workloads.parameters import Gpt
from hidl_workloads.training.model import Batch, Model

_DEVIATION = 0.02  # of the initial weights


class GPT(Model):
    """Sequences of random tokens, in which each token is predicted from those before it."""

    title = "GPT"
    items = "tokens"
    label = "Tokens"

    def __init__(self, parameters: Gpt) -> None:
        """Raise ``ValueError`` if the heads do not divide the width."""
        if parameters.width % parameters.heads:
            raise ValueError(f"width must be a multiple of heads, {parameters.heads}, not {parameters.width}")
        self._parameters = parameters

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

    def torch_network(self) -> Any:
        """Return the network."""
        return torch_network(self._parameters)


def torch_network(parameters: Gpt) -> Any:
    """Return the decoder of GPT-2, without dropout: 124,439,808 parameters as GPT-2 small.

    Radford et al., Language Models are Unsupervised Multitask Learners (2019): normalisation before each part of a
    block, learned positions, and one matrix for the embedding and the output.
    """
    import torch
    from torch import nn

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
            query, key, value = (
                part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
            )
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.attended(mixed.transpose(1, 2).flatten(-2))
            return x + self.contract(nn.functional.gelu(self.expand(self.norm2(x)), approximate="tanh"))

    class Decoder(nn.Module):  # type: ignore[misc]
        """The network."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(parameters.vocabulary, width)
            self.positions = nn.Embedding(parameters.context, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(parameters.layers)))
            self.norm = nn.LayerNorm(width)
            for name, weight in self.named_parameters():
                if name.endswith("bias"):
                    nn.init.zeros_(weight)
                elif weight.dim() > 1:
                    # What is added to a block's input is the smaller, the more blocks there are.
                    added = name.endswith(("attended.weight", "contract.weight"))
                    nn.init.normal_(weight, std=_DEVIATION / (math.sqrt(2 * parameters.layers) if added else 1))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            """Map tokens (N, T) to logits (N, T, vocabulary)."""
            x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
            return nn.functional.linear(self.norm(self.blocks(x)), self.tokens.weight)

    return Decoder()


if __name__ == "__main__":
    from hidl_workloads.training.program import main

    main("gpt", Gpt, GPT)
