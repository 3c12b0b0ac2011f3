"""One rank's part of a training: what it computes in a step of training, of testing, of prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import keras
    import numpy as np
    from mpi4py import MPI

    from hyparflow.planning.plan import Plan


@dataclass(frozen=True)
class Options:
    """How steps are computed, where the plan leaves a choice.

    ``batch_norm``   "replica": each replica's moving statistics are its own (and alike only by chance; a checkpoint
                     holds replica 0's); "synchronised": averaged over the replicas after every step;
                     "deferred": averaged when asked (``Engine.synchronise``: before validation, checkpoints, the end)
    ``bucket_bytes`` gradients are summed over the replicas in buckets of about this size
    ``seed``         of the calls of seeded layers (Dropout, ...): see hyparflow.backends
    ``trace``        record when each action, message and allreduce began and ended (``StepResult.spans``)
    """

    batch_norm: Literal["replica", "synchronised", "deferred"] = "replica"
    bucket_bytes: int = 16 * 2**20
    seed: int = 0
    trace: bool = False


@dataclass(frozen=True)
class Batch:
    """One step's data of this replica: every array's leading axis is micro_batches * micro_batch_size long.

    ``inputs``: the model's inputs in flattened order; ``targets`` and ``sample_weights``: per output in flattened
    order, an entry None where there is none. A rank that does not read an array may leave None in its place
    (``Engine.reads`` says which it does read).
    """

    inputs: tuple[np.ndarray[Any, Any] | None, ...]
    targets: tuple[np.ndarray[Any, Any] | None, ...] = ()
    sample_weights: tuple[np.ndarray[Any, Any] | None, ...] = ()


@dataclass(frozen=True)
class Reads:
    """What this rank needs of a batch: indices of inputs, and of outputs whose targets and weights it uses."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Span:
    """What a rank did from ``begin`` to ``end`` (``time.perf_counter`` seconds).

    ``kind``: forward, backward, receive (waiting for a tensor), allreduce (started to completed), wait (for allreduces),
    update. ``stage``, ``micro_batch`` and ``pipeline`` are -1 where they do not apply.
    """

    kind: str
    begin: float
    end: float
    stage: int = -1
    micro_batch: int = -1
    pipeline: int = -1


@dataclass(frozen=True)
class StepResult:
    """What arose on this rank in one step.

    ``outputs``         output of the model -> micro-batch -> its predictions, where that output is made on this rank
                        (under GEMS each of two ranks has half of the micro-batches)
    ``losses``          output of the model -> micro-batch -> its loss, a Python float: as Keras' compiled loss gives
                        it for that micro-batch, before loss_weights
    ``regularization``  sum of the losses that this rank's layers add (regularizers, add_loss), mean over the
                        micro-batches; each layer is counted on one rank of the replica only
    ``updated``         False where mixed precision's loss scale found no finite gradients, and the update was left out
    ``gradient_norm``   global norm of the gradients before clipping, where the optimizer clips by it, else None
    """

    outputs: Mapping[int, Mapping[int, Any]] = field(default_factory=dict)
    losses: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    regularization: float = 0.0
    updated: bool = False
    gradient_norm: float | None = None
    spans: Sequence[Span] = ()


class Engine:
    """One rank's part of a training.

    All ranks call the same methods in the same order: each of them is collective over ``world``.
    """

    def __init__(self, model: keras.Model, plan: Plan, world: MPI.Comm, options: Options | None = None) -> None:
        """``model``: compiled, the same on every rank (its own stages' variables are made here, if they are not).

        Raises PlanError where the plan is not this model's, WorldError where the ranks are too few or too many,
        UnsupportedModel where the optimizer asks for what cannot be kept (``gradient_accumulation_steps``).
        """
        raise NotImplementedError

    @property
    def reads(self) -> Reads:
        """What this rank needs of every batch."""
        raise NotImplementedError

    @property
    def step(self) -> int:
        """The number of training steps taken; it selects the seeds of the next one. Set it after a restart."""
        raise NotImplementedError

    @property
    def variables(self) -> Mapping[str, keras.Variable]:
        """Path -> variable, of those that this rank owns: trainable, non-trainable, the optimizer's, its iterations.

        A variable that several ranks own (replicas, GEMS, shared layers) is equal on all of them; seed generators'
        states are not among them: they follow from ``Options.seed`` and ``step``.
        """
        raise NotImplementedError

    def train_step(self, batch: Batch) -> StepResult:
        """Forward and backward of all micro-batches, sum of the gradients, one update of the optimizer."""
        raise NotImplementedError

    def test_step(self, batch: Batch) -> StepResult:
        """Forward in inference mode; losses and outputs where they arise."""
        raise NotImplementedError

    def predict_step(self, batch: Batch) -> Mapping[int, np.ndarray[Any, Any]]:
        """Forward in inference mode: the outputs made on this rank's pipeline 0, all micro-batches in order."""
        raise NotImplementedError

    def synchronise(self) -> None:
        """Average BatchNorm's moving statistics over the replicas (no-op with one); asked by ``deferred``."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the communicators back; collective."""
        raise NotImplementedError
