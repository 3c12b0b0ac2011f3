"""Train GPT in one process on the batches of several ranks, from rank 0's weights: ``OUT NUMBER OPTIONS``.

Written as JSON to OUT: the mean of the ranks' losses in the first step and in the last one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from hidl_workloads import arguments
from hidl_workloads.gpt import GPT
from hidl_workloads.parameters import Gpt
from hidl_workloads.training.model import rank_batch, rank_seed

file, number, options = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
parameters = arguments.parse(Gpt, options)
model = GPT(parameters)
torch.manual_seed(rank_seed(parameters.seed, 0))
network = model.torch_network()
batches = [rank_batch(model, parameters.seed, rank) for rank in range(number)]
inputs, targets = (
    torch.cat([torch.from_numpy(getattr(batch, name)) for batch in batches]) for name in ("inputs", "targets")
)
optimizer = torch.optim.Adam(network.parameters(), lr=parameters.learning_rate)
losses = []
for _ in range(parameters.warmup + parameters.steps):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(network(inputs).flatten(0, -2), targets.flatten())
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
Path(file).write_text(json.dumps({"first": losses[0], "last": losses[-1]}))
