"""The interfaces of a model that is trained, and of a framework that trains it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hidl_workloads.metrics import Metric

if TYPE_CHECKING:
    from mpi4py import MPI

    from hidl_workloads.checkpoint import Snapshot


@dataclass(frozen=True)
class Batch:
    """One rank's samples, and the class of each (integers); the first axis of both counts the samples."""

    inputs: NDArray[Any]
    targets: NDArray[np.int64]


class DataSet(Protocol):
    """Samples that are read from files."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def digest(self) -> str:
        """Return a checksum of the positions, sizes and classes of all samples."""

    def read(self, samples: Sequence[tuple[int, int]]) -> Batch:
        """Return a batch of samples, each given by its epoch and number; threads call this at the same time."""


class Model(ABC):
    """A classifier, trained by cross-entropy; a subclass gives its data, and its network in one framework or several.

    The last axis of the network's output is that of the classes; the others are those of ``Batch.targets``. Frameworks
    are imported by the methods that need them. ``items`` is what throughput counts (``images``: the metric is
    ``images_per_second``), and ``label`` its name in the report (``Img/sec``).
    """

    title: str
    items: ClassVar[str]
    label: ClassVar[str]
    #: Recompute activations in the backward pass; set by the trainer if ``memory_limit`` requires it.
    recomputes = False

    @abstractmethod
    def items_per_step(self) -> int:
        """Return the number of ``items`` that a rank trains on in one step."""

    def flops_per_item(self) -> float | None:
        """Return the floating-point operations of a training step for one of the ``items``; None if not counted."""
        return None

    @abstractmethod
    def describe_batch(self) -> str:
        """Return the size of a rank's batch, such as ``8 per rank, images of 224 x 224 pixels``."""

    @abstractmethod
    def make_batch(self, random: np.random.Generator) -> Batch:
        """Return a rank's batch; ``random`` differs from rank to rank."""

    def open_data(self, communicator: MPI.Comm, path: Path) -> DataSet:
        """Open the data set in a directory or file; collective. Raise ``Refused`` on all ranks if it cannot be used."""
        from hidl_workloads.refusal import Refused  # imports MPI

        raise Refused(f"{self.title} has no reader for files: leave out data={path}")

    def torch_network(self) -> Any:
        """Return the ``torch.nn.Module``."""
        raise NotImplementedError(f"{self.title} has no network for PyTorch")

    def torch_inputs(self, inputs: NDArray[Any]) -> Any:
        """Return ``Batch.inputs`` as the tensor that the network takes."""
        import torch

        return torch.from_numpy(inputs)

    def keras_network(self) -> Any:
        """Return the ``keras.Model``."""
        raise NotImplementedError(f"{self.title} has no network for Keras")

    def keras_inputs(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Return ``Batch.inputs`` in the layout that the network takes."""
        return inputs


class Trainer(Protocol):
    """A model with its optimizer and its batch, on one rank of the world.

    ``device`` is what it computes on, as its maker names it; ``path`` the way of gradients on a GPU (``gpu-aware``,
    ``staged``, ``nccl``), and ``path_reason`` why it was chosen; empty where there is none.
    """

    parameter_count: int
    versions: dict[str, str]
    device: str
    path: str
    path_reason: str

    @property
    def fixed_ranks(self) -> str | None:
        """The reason why a checkpoint cannot be continued on another number of ranks; None if it can."""

    def feed(self, batch: Batch) -> None:
        """Use this rank's batch in the steps that follow."""

    def snapshot(self, document: Mapping[str, Any]) -> Snapshot:
        """Return the state between two steps."""

    def restore(self, shared: Path, own: Path) -> None:
        """Continue from the files of a checkpoint, right after the trainer was made."""

    def step(self) -> float:
        """Train one step, with all ranks; returns the loss of this rank's batch, in nats."""

    def metrics(self) -> Sequence[Metric]:
        """Return what the device measured; collective."""

    def weights(self) -> Iterable[tuple[str, NDArray[Any]]]:
        """Yield every trainable weight's name and value, in an order that is the same on all ranks."""

    def close(self) -> None:
        """Release communicators and buffers after the last step; collective."""


def rank_seed(seed: int, rank: int) -> int:
    """Return 32 bits that differ for every pair of seed and rank (seed 1's rank 0 is not seed 0's rank 1)."""
    return int(np.random.SeedSequence((seed, rank)).generate_state(1)[0])


def rank_batch(model: Model, seed: int, rank: int) -> Batch:
    """Return the batch of one rank."""
    return model.make_batch(np.random.default_rng(rank_seed(seed, rank)))
