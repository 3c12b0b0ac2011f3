"""What the engine asks of a framework: one stage of a model as compiled programs.

A backend is small on purpose. To add one, implement ``StageProgram`` and a function like
``hyparflow.backends.tensorflow.build``; everything else (schedules, messages, allreduce) knows only this protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

#: A NumPy array (host memory, C-contiguous). Those that a program gives out may be read-only views of the framework's
#: memory: fit to be sent, alive as long as the array is, not to be written to unless it is said so.
Array = Any

BatchNorm = Literal["replica", "synchronised", "deferred"]


@dataclass(frozen=True)
class ProgramOptions:
    """How programs are built.

    ``batch_norm``: the moving statistics. ``replica``: each replica has its own, advanced by each of its micro-batches
    in order. ``synchronised``: the same, averaged over the replicas after every step. ``deferred``: one update a step,
    with mean and variance of the whole batch, over all micro-batches and replicas (as in torchgpipe's
    DeferredBatchNorm). Micro-batches are normalised by their own statistics in every mode.
    ``bucket_bytes``: about the size of one gradient buffer. ``device_messages``: what stages send to each other are the
    framework's own tensors, where they are (``MessageMemory``), rather than arrays of the host.
    """

    batch_norm: BatchNorm = "replica"
    bucket_bytes: int = 25 * 2**20
    device_messages: bool = False


@dataclass(frozen=True)
class Portion:
    """What one micro-batch is of the batch whose loss it adds to.

    ``rows``: the first so many of its rows are samples; the others fill it up, and count in no loss. ``samples``: of
    the batch. ``parts``: micro-batches, of all replicas, in which the batch is computed. ``filled``: whether any of
    them is filled up. ``totals``: what a sum of losses is to be divided by over the whole batch, by position in the
    compiled losses; where it is left out or negative, that of a micro-batch is taken, weighted by its rows.
    """

    rows: int
    samples: int
    parts: int
    filled: bool = False
    totals: tuple[float, ...] = ()

    @property
    def weight(self) -> float:
        """Of a mean over the micro-batch, where the batch is the mean over its parts: 1 where they are equal."""
        return self.parts * self.rows / self.samples


@dataclass(frozen=True)
class Place:
    """Where a micro-batch stands in the training: from this the seeds and the weights of moving statistics follow.

    ``step``: updates done before it, from 0. ``micro_batch``: 0..micro_batches-1 within the replica's step.
    ``portion``: None where all micro-batches of a step are equally large, and each has its own mean as loss.
    """

    step: int
    replica: int
    micro_batch: int
    replicas: int
    micro_batches: int
    portion: Portion | None = None

    @property
    def total(self) -> int:
        """Micro-batches of a step over all replicas: losses are scaled by one over it."""
        return self.replicas * self.micro_batches

    @property
    def order(self) -> int:
        """The micro-batches that sequential training would have processed before this one, since step 0."""
        return (self.step * self.replicas + self.replica) * self.micro_batches + self.micro_batch


@dataclass(frozen=True)
class Target:
    """What one output of the model is compared with: arrays of ``micro_batch_size`` rows."""

    value: Array
    sample_weight: Array | None = None


@dataclass(frozen=True)
class Outcome:
    """What a forward gives.

    ``sends``: tensor -> value, for every tensor in ``Stage.sends``. ``outputs``: tensor -> y_pred, for every tensor in
    ``Stage.outputs``. ``beside``: tensor -> the mask of y_pred and the logits that it was made from, each None where
    there is none; for models with metrics. ``losses``: position in ``Graph.outputs`` -> the compiled loss of that
    output, a float, neither weighted nor scaled: the mean over the parts of a batch is Keras' loss of the batch.
    ``loss``: what this stage adds to the total loss of the micro-batch (weighted losses, and the weight and activity
    regularizers and ``add_loss`` of its layers), not scaled. The model's loss on a micro-batch is the sum of ``loss``
    over all stages. Losses are given only where targets were.
    """

    sends: Mapping[int, Array]
    outputs: Mapping[int, Array] = field(default_factory=dict)
    beside: Mapping[int, tuple[Array | None, Array | None]] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)
    loss: float = 0.0


@dataclass(frozen=True)
class Slot:
    """Where one variable lies in a flat buffer: elements ``offset .. offset + size``."""

    variable: str
    offset: int
    size: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Buffer:
    """A contiguous, writable, one-dimensional host array, and the variables that lie in it one after the other.

    It is the program's own memory, or for a GPU the one copy of it in a step: an allreduce in place (``MPI.IN_PLACE``)
    is seen by whoever asks the program again. It stays valid until the program's next ``start_step``.
    """

    array: Array
    slots: tuple[Slot, ...]


class MessageMemory(Protocol):
    """Memory that MPI sends messages from, and receives them in."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Return an array to receive in, which shares its memory with no other."""

    def first_rows(self, array: Array, rows: int | None) -> Array:
        """Return the first so many rows of one that was received; None: all."""

    def to_mpi(self, array: Array) -> object:
        """Return what mpi4py takes for the array's memory, as bytes: MPI has no names for some dtypes (bfloat16)."""


class StageShape(Protocol):
    """What a program needs to know of a stage; ``hyparflow.planning.stages.Stage`` has it."""

    @property
    def index(self) -> int: ...
    @property
    def nodes(self) -> tuple[int, ...]: ...
    @property
    def receives(self) -> tuple[int, ...]: ...
    @property
    def sends(self) -> Mapping[int, tuple[int, ...]]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...
    @property
    def recompute(self) -> bool: ...


@dataclass(frozen=True)
class Reach:
    """What depends on one source of gradients of a stage: ``variables`` (names), and tensors that it ``received``."""

    variables: frozenset[str]
    received: frozenset[int]


class StageProgram(Protocol):
    """One stage on one rank, compiled. Every rank that owns a stage has one program for it.

    Under GEMS a partition may own a stage in both pipelines: one program then serves both.

    A step is: ``start_step``; any order of ``forward`` and ``backward`` in which a micro-batch's backward comes after
    its forward; the engine's reductions over ``gradients()`` and ``statistics()``; the optimizer; ``finish_step``.
    """

    @property
    def stage(self) -> StageShape:
        """The stage that it computes."""

    @property
    def variables(self) -> Mapping[str, Any]:
        """Name (``variables_of``) -> Keras variable: all that the stage's layers have, seed states included.

        They are initialised when the program is built. The order is the model's.
        """

    @property
    def trainable(self) -> tuple[str, ...]:
        """Names of those that have gradients, in the order of the slots of ``gradients()``."""

    def start_step(self, loss_scale: float = 1.0) -> None:
        """Zero gradients and statistics, forget what is kept, and multiply losses by ``loss_scale`` from now on.

        ``loss_scale`` is that of a ``LossScaleOptimizer``; ``gradients()`` then come out multiplied by it.
        """

    def prepare(
        self,
        place: Place,
        inputs: Mapping[int, Array],
        targets: Mapping[int, Target] | None = None,
        training: bool = True,
    ) -> None:
        """Compile micro-batches like this one, for training after ``start_step``; what is computed counts nowhere.

        Raises UnsupportedModel for layers that do what cannot be done in parts.
        """

    def forward(
        self,
        place: Place,
        inputs: Mapping[int, Array],
        targets: Mapping[int, Target] | None = None,
        training: bool = True,
    ) -> Outcome:
        """Compute a micro-batch.

        Args:
            place: the micro-batch. When training, what backward needs is kept under ``place.micro_batch``.
            inputs: tensor -> array, for every tensor in ``stage.receives``. They may be used without a copy: leave them
                alone until this micro-batch's backward is done (without training: until the outcome was read).
            targets: position in ``Graph.outputs`` -> target, for the outputs of this stage that have a loss.
                None (not training only) computes no losses.
            training: Keras' own flag. Without it nothing is kept, and ``place`` says nothing.

        A stage that sends nothing computes its gradients here already (forward and backward in one program), so that
        the gradients of what it received are ready; ``backward`` hands them out.
        """

    def backward(self, place: Place, gradients: Mapping[int, Sequence[Array]]) -> Mapping[int, Array]:
        """Add the micro-batch's weight gradients to the accumulated ones, and drop what forward kept.

        Args:
            place: as in forward.
            gradients: tensor -> what came back for it, in the order of ``stage.sends[tensor]``, for every sent tensor
                that is ``differentiable``; the program adds them up in that order. They may be used without a copy:
                leave them alone until this returns.

        Returns: tensor -> gradient, for every received tensor that is ``differentiable``.

        Losses (compiled, regularizers, ``add_loss``) of this stage are differentiated here, scaled by
        ``loss_scale / place.total``. A weight regularizer of a layer that several stages share counts on the stage that
        holds the layer's first node.
        """

    def gradients(self) -> tuple[Buffer, ...]:
        """The accumulated gradients of ``trainable``: one buffer per dtype and about ``bucket_bytes``."""

    def reaches(self) -> Mapping[int | None, Reach]:
        """By source: None for the stage's own losses, a sent tensor for the gradient that comes back for it.

        Known once training was compiled. What no source reaches has no gradient, where ``gradients()`` has zeros.
        """

    def statistics(self) -> tuple[Buffer, ...]:
        """What this step adds to moving statistics: BatchNorm's variables, one buffer per dtype; empty without any.

        The engine sums them in place over the owners of the same stage or shared layer within a replica (GEMS has two
        owners), and, unless the mode is ``replica``, over the replicas; ``finish_step`` then applies them.
        """

    def finish_step(self, place: Place) -> None:
        """Advance moving statistics and seed states to where sequential training has them after ``place.step``.

        ``place``: any of the step.
        """
