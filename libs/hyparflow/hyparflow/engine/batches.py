"""The data that the engine accepts and returns: batches, options, results of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hyparflow.backends import BatchNorm, MessageMemory
from hyparflow.engine.runner import Span
from hyparflow.errors import DataError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Options:
    """Options for computing steps that the plan leaves open.

    ``batch_norm``: update of moving statistics, see ``hyparflow.backends.ProgramOptions``. ``bucket_bytes``:
    approximate size of the buffers in which gradients are summed over their owners. ``trace``: record
    ``StepResult.spans``. ``messages``: GPU memory that a GPU-aware MPI sends tensors from; None: tensors are copied to
    the host.
    """

    batch_norm: BatchNorm = "replica"
    bucket_bytes: int = 16 * 2**20
    trace: bool = False
    messages: MessageMemory | None = None


@dataclass(frozen=True)
class Counts:
    """The relation of a step's rows to the batch whose loss they contribute to.

    ``rows``: number of this replica's first rows that are samples; the others are padding. ``size``: rows of a
    micro-batch. ``samples``: samples of the whole batch, over all replicas. ``steps``: number of steps that compute the
    batch, more than 1 in evaluations only. ``totals``: see ``hyparflow.backends.Portion``.
    """

    rows: int
    size: int
    samples: int
    steps: int = 1
    totals: tuple[float, ...] = ()


@dataclass(frozen=True)
class Batch:
    """One step's data of this replica: the leading axis of every array has micro_batches * micro_batch_size rows.

    With ``counts``, micro-batches can be smaller, and some rows can be padding.

    ``inputs``: the model's inputs in flattened order. ``targets`` and ``sample_weights``: per output in flattened
    order, None if absent. A rank can leave out arrays that it does not read (see ``Engine.reads``) by passing None.
    """

    inputs: tuple[np.ndarray[Any, Any] | None, ...]
    targets: tuple[np.ndarray[Any, Any] | None, ...] = ()
    sample_weights: tuple[np.ndarray[Any, Any] | None, ...] = ()
    counts: Counts | None = None

    def check(self, reads: Reads, rows: int) -> None:
        """Raise DataError if an array that is read is missing or has the wrong length."""
        for what, arrays, wanted in (("input", self.inputs, reads.inputs), ("target", self.targets, reads.outputs)):
            for index in wanted:
                if what == "input" and (index >= len(arrays) or arrays[index] is None):
                    raise DataError(f"input {index} is missing in the batch, but this rank's stages read it")
                if index < len(arrays) and (array := arrays[index]) is not None and len(array) != rows:
                    raise DataError(f"{what} {index} has {len(array)} rows, expected {rows} per replica and step")


@dataclass(frozen=True)
class Reads:
    """The part of a batch that a rank reads: indices of inputs, and of outputs whose targets and weights it uses."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class StepResult:
    """The results of one rank in one step.

    Attributes:
        outputs: Output of the model -> micro-batch -> its predictions, if that output is computed on this rank (under
            GEMS, each of two ranks has half of the micro-batches).
        beside: Output of the model -> micro-batch -> mask and logits of its predictions (None if absent), for models
            with metrics.
        losses: Output of the model -> micro-batch -> its compiled loss before loss_weights, if it has a target. Keras'
            loss of the batch is the mean over all of its micro-batches.
        loss: The contribution of this rank's stages to the step's loss: weighted losses, regularizers and ``add_loss``,
            as a mean over the replica's micro-batches and the parts of its images. The sum over the replica's ranks is
            Keras' ``loss``.
        updated: False if the loss scale of mixed precision found non-finite gradients and skipped the update.
        gradient_norm: The global norm of the gradients before clipping, if the optimizer clips by it, else None.
        spans: The activities of the rank, if they are recorded.
    """

    outputs: Mapping[int, Mapping[int, Any]] = field(default_factory=dict)
    beside: Mapping[int, Mapping[int, tuple[Any, Any]]] = field(default_factory=dict)
    losses: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    loss: float = 0.0
    updated: bool = False
    gradient_norm: float | None = None
    spans: Sequence[Span] = ()
