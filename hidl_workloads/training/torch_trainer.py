"""The training step with PyTorch."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads import freed_memory, phases, torch_device
from hidl_workloads.checkpoint import Snapshot
from hidl_workloads.metrics import Metric
from hidl_workloads.parameters import Training
from hidl_workloads.refusal import agree
from hidl_workloads.training import strategy, torch_checkpoint, torch_parallel, torch_strategies
from hidl_workloads.training.model import Batch, Model, rank_seed

_MIB = 2**20
_UNCERTAINTY = 1.25  # of predictions, because a step may fit although the prediction exceeds the free memory
_GIGA = 1e9


class TorchTrainer:
    """A model in PyTorch, on this rank's GPU in a run on GPUs; the strategy averages the gradients."""

    def __init__(self, communicator: MPI.Comm, model: Model, parameters: Training, batch: Batch) -> None:
        if "OMP_NUM_THREADS" in os.environ:
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        (freed_memory.give_back if parameters.memory_limit else freed_memory.keep)()
        divided = strategy.parallel(parameters) != "ddp"
        torch.manual_seed(rank_seed(parameters.seed, 0 if divided else communicator.rank))
        self.versions = {"torch": torch.__version__}
        self._communicator = communicator
        self._model = model
        self._device = torch_device.choose_device(communicator)
        self.device = "CPU" if self._device.type == "cpu" else torch.cuda.get_device_name(self._device)
        self._precision = torch.bfloat16 if parameters.precision == "bfloat16" else torch.float32
        inputs, targets = model.torch_inputs(batch.inputs), torch.from_numpy(batch.targets)
        self._predicted = self._fit(inputs, targets, parameters)
        torch_parallel.load(parameters)
        self._baseline = _restart_peak()
        network = model.torch_network(empty=True) if divided else model.torch_network()  # type: ignore[call-arg]
        if not divided:
            network.to(self._device)
        self._network = network
        self.parameter_count = sum(weight.numel() for weight in network.parameters())
        self._flops = model.flops_per_item()
        make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[parameters.optimizer]
        optimizer = partial(make, lr=parameters.learning_rate)
        self._strategy = torch_strategies.make(communicator, network, optimizer, parameters)
        self._inputs, self._targets = self._strategy.batch(inputs.to(self._device), targets.to(self._device))
        self.versions |= self._strategy.versions
        self.path, self.path_reason = self._strategy.path, self._strategy.path_reason

    def _fit(self, inputs: torch.Tensor, targets: torch.Tensor, parameters: Training) -> int | None:
        """Return the predicted bytes of a step, if they are limited; collective.

        Activations are computed again if that is left to the trainer and required.

        Raises:
            Refused: on all ranks, if a step needs more than the limit on one of them.
        """
        limits = {}
        if parameters.memory_limit:
            limits[f"memory_limit is {parameters.memory_limit} MiB"] = parameters.memory_limit * _MIB
        if self._device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._device)
            limits[f"only {free / _MIB:.0f} MiB of GPU memory are free"] = int(free * _UNCERTAINTY)
        if not limits:
            return None
        from hidl_workloads.training import torch_memory

        reason, limit = min(limits.items(), key=lambda each: each[1])
        communicator, partitions = self._communicator, strategy.partitions(parameters, self._communicator)
        share = torch_memory.Share(
            communicator.size, communicator.rank, partitions, strategy.parts(parameters, partitions)
        )
        predict = partial(
            torch_memory.predict, self._model, inputs, targets, parameters, loss=_cross_entropy, share=share
        )
        needed = predict()
        if communicator.allreduce(needed > limit, MPI.LOR) and getattr(parameters, "recompute", "") == "auto":
            self._model.recomputes = True
            needed = predict()
        fault = f"a step needs {needed / _MIB:.0f} MiB, but {reason}" if needed > limit else None
        agree(communicator, f"{fault}: {strategy.smaller(parameters)}" if fault else None)
        return needed

    def feed(self, batch: Batch) -> None:
        """Use this rank's batch in the steps that follow."""
        inputs, targets = self._model.torch_inputs(batch.inputs), torch.from_numpy(batch.targets)
        self._inputs, self._targets = self._strategy.batch(inputs.to(self._device), targets.to(self._device))

    def step(self) -> float:
        """Train one step; returns the loss of this rank's batch."""
        self._strategy.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._precision == torch.bfloat16):
            loss = self._strategy.train(self._inputs, self._targets, _cross_entropy)
        with phases.phase(phases.UPDATE):
            self._strategy.optimizer.step()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # the update is in the same stream
        return loss

    def metrics(self) -> list[Metric]:
        """Return the memory and, if the model counts operations, the rate of matrix products; collective."""
        found = []
        if self._device.type == "cuda":
            peaks = self._communicator.allgather(torch.cuda.max_memory_allocated(self._device) / _MIB)
            found.append(Metric("gpu_memory", max(peaks), "MiB", peaks))
        else:
            peaks = self._communicator.allgather((_peak() - self._baseline) / _MIB)
        found.append(Metric("peak_memory", max(peaks), "MiB", peaks))
        if self._predicted is not None:
            predicted = self._communicator.allgather(self._predicted / _MIB)
            found.append(Metric("predicted_memory", max(predicted), "MiB", predicted))
            recomputes = "always" if self._model.recomputes else "never"
            found.append(Metric("recompute", recomputes, "activations", [recomputes] * self._communicator.size))
        if self._flops is not None:
            self._communicator.Barrier()  # so that ranks that share cores multiply at the same time
            rates = self._communicator.allgather(_multiplication_rate(self._device, self._precision) / _GIGA)
            found.append(Metric("matmul_rate", sum(rates) / len(rates), "GFLOP/s", rates))
        return found

    def weights(self) -> Iterable[tuple[str, NDArray[Any]]]:
        """Return every trainable weight's name and value; collective if ranks have shards."""
        return ((name, weight.cpu().numpy()) for name, weight in self._strategy.weights())

    @property
    def fixed_ranks(self) -> str | None:
        """The reason why a checkpoint cannot be continued on another number of ranks; None if it can."""
        return "each rank has a part of the weights" if torch_checkpoint.is_sharded(self._network) else None

    def snapshot(self, document: Mapping[str, Any]) -> Snapshot:
        """Return the state between two steps."""
        state = (self._network, self._strategy.optimizer)
        return Snapshot(
            partial(torch_checkpoint.write_shared, *state), partial(torch_checkpoint.write_own, *state), document
        )

    def restore(self, shared: Path, own: Path) -> None:
        """Continue from the files of a checkpoint."""
        torch_checkpoint.restore(self._network, self._strategy.optimizer, shared, own)

    def close(self) -> None:
        """Release communicators and buffers; collective."""
        self._strategy.close()


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def _restart_peak() -> int:
    """Let the kernel forget the process's peak memory so far, and return what it has now."""
    with suppress(OSError):  # if the kernel does not support this, the peak is that of the whole program
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def _peak() -> int:
    """Return the most memory that the process has had, in bytes."""
    return _status("VmHWM")


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _multiplication_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the floating-point operations per second of a product of large matrices: the best of several."""
    side = 8192 if device.type == "cuda" else 1024
    left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    seconds = []
    for _ in range(8):
        began = time.perf_counter()
        float((left @ right)[0, 0])  # waits for it
        seconds.append(time.perf_counter() - began)
    return 2 * side**3 / min(seconds)
