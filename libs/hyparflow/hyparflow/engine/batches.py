"""What the engine takes and gives: batches, options, what arose in a step."""

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
    """How steps are computed, where the plan leaves a choice.

    ``batch_norm``: of moving statistics, see ``hyparflow.backends.ProgramOptions``. ``bucket_bytes``: gradients are
    summed over their owners in buffers of about this size. ``trace``: give ``StepResult.spans``. ``messages``: a GPU's
    memory, of which a GPU-aware MPI sends tensors to other stages; None: they are copied to the host's.
    """

    batch_norm: BatchNorm = "replica"
    bucket_bytes: int = 16 * 2**20
    trace: bool = False
    messages: MessageMemory | None = None


@dataclass(frozen=True)
class Counts:
    """What a step's rows are of the batch whose loss they add to.

    ``rows``: of this replica's, the first so many are samples; the others fill micro-batches up. ``size``: rows of a
    micro-batch. ``samples``: of the whole batch, over all replicas. ``steps``: in which the batch is computed: more
    than 1 in an evaluation only. ``totals``: see ``hyparflow.backends.Portion``.
    """

    rows: int
    size: int
    samples: int
    steps: int = 1
    totals: tuple[float, ...] = ()


@dataclass(frozen=True)
class Batch:
    """One step's data of this replica: every array's leading axis is micro_batches * micro_batch_size long.

    With ``counts`` micro-batches may be smaller, and some of the rows may be there to fill them up.

    ``inputs``: the model's inputs in flattened order; ``targets`` and ``sample_weights``: per output in flattened
    order, an entry None where there is none. A rank that does not read an array may leave None in its place
    (``Engine.reads`` says which it does read).
    """

    inputs: tuple[np.ndarray[Any, Any] | None, ...]
    targets: tuple[np.ndarray[Any, Any] | None, ...] = ()
    sample_weights: tuple[np.ndarray[Any, Any] | None, ...] = ()
    counts: Counts | None = None

    def check(self, reads: Reads, rows: int) -> None:
        """Raise DataError where an array that is read is missing or has another length."""
        for what, arrays, wanted in (("input", self.inputs, reads.inputs), ("target", self.targets, reads.outputs)):
            for index in wanted:
                if what == "input" and (index >= len(arrays) or arrays[index] is None):
                    raise DataError(f"input {index} is missing in the batch: this rank's stages read it")
                if index < len(arrays) and (array := arrays[index]) is not None and len(array) != rows:
                    raise DataError(f"{what} {index} has {len(array)} rows; a step of this plan has {rows} per replica")


@dataclass(frozen=True)
class Reads:
    """What a rank needs of a batch: indices of inputs, and of outputs whose targets and weights it uses."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class StepResult:
    """What arose on one rank in one step.

    ``outputs``        output of the model -> micro-batch -> its predictions, where that output is made on this rank
                       (under GEMS each of two ranks has half of the micro-batches)
    ``beside``         output of the model -> micro-batch -> the mask of its predictions and the logits that they were
                       made from (None where there is none), for models with metrics
    ``losses``         output of the model -> micro-batch -> its compiled loss, before loss_weights; where there was a
                       target. Keras' loss of the batch is the mean over all of its micro-batches
    ``loss``           what this rank's stages add to the step's loss: weighted losses, regularizers and ``add_loss``,
                       mean over the replica's micro-batches. The sum over the replica's ranks is Keras' ``loss``
    ``updated``        False where mixed precision's loss scale found gradients that are not finite, and left the update
                       out
    ``gradient_norm``  global norm of the gradients before clipping, where the optimizer clips by it, else None
    """

    outputs: Mapping[int, Mapping[int, Any]] = field(default_factory=dict)
    beside: Mapping[int, Mapping[int, tuple[Any, Any]]] = field(default_factory=dict)
    losses: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    loss: float = 0.0
    updated: bool = False
    gradient_norm: float | None = None
    spans: Sequence[Span] = ()
