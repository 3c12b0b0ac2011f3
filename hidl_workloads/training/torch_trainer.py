"""The training step with PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads import freed_memory
from hidl_workloads.parameters import Training
from hidl_workloads.training import torch_strategies
from hidl_workloads.training.data_parallel.torch_state import named_weights
from hidl_workloads.training.model import Batch, Model, rank_seed


class TorchTrainer:
    """A model in PyTorch; the strategy averages the gradients."""

    def __init__(self, communicator: MPI.Comm, model: Model, parameters: Training, batch: Batch) -> None:
        if "OMP_NUM_THREADS" in os.environ:
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        freed_memory.keep()
        torch.manual_seed(rank_seed(parameters.seed, communicator.rank))
        self.versions = {"torch": torch.__version__}
        self._inputs = model.torch_inputs(batch.inputs)
        self._targets = torch.from_numpy(batch.targets).flatten()
        self._network = model.torch_network()
        self.parameter_count = sum(weight.numel() for weight in self._network.parameters())
        optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[parameters.optimizer]
        plain = optimizer(self._network.parameters(), lr=parameters.learning_rate)
        self._strategy = torch_strategies.make(communicator, self._network, plain, parameters)
        self.versions |= self._strategy.versions
        self._low_precision = parameters.precision == "bfloat16"

    def step(self) -> float:
        """Train one step; returns the loss of this rank's batch."""
        self._strategy.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._low_precision):
            logits = self._strategy.model(self._inputs)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), self._targets)
        loss.backward()
        self._strategy.optimizer.step()
        return float(loss.item())

    def weights(self) -> Iterable[tuple[str, NDArray[Any]]]:
        """Yield every trainable weight's name and value."""
        return named_weights(self._network)

    def close(self) -> None:
        """Release communicators and buffers; collective."""
        self._strategy.close()
