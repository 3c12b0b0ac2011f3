"""The interface of a framework: one stage of a model as compiled programs.

A backend is small on purpose. To add one, implement ``StageProgram`` and a function like
``hyparflow.backends.tensorflow.build``; everything else (schedules, messages, allreduce) only uses this protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

    from hyparflow.graph.spatial import Division

#: A NumPy array (host memory, C-contiguous). Arrays that a program returns can be read-only views of the framework's
#: memory: they can be sent and stay valid while referenced, but must not be written to unless stated otherwise.
Array = Any

BatchNorm = Literal["replica", "synchronised", "deferred"]


@dataclass(frozen=True)
class SpatialPart:
    """The part of the images that a rank computes.

    ``index`` is the rank in both communicators, which contain the parts of the same stages and images. ``forward`` is
    for rows of tensors, ``backward`` for their gradients. ``wait`` waits for a request of MPI.
    """

    division: Division
    index: int
    forward: Any
    backward: Any
    wait: Callable[[Any], None]


@dataclass(frozen=True)
class ProgramOptions:
    """Options for building programs.

    ``batch_norm`` selects how moving statistics are updated. ``replica``: each replica has its own, updated by each of
    its micro-batches in order. ``synchronised``: the same, averaged over the replicas after every step. ``deferred``:
    one update per step with the mean and variance of the whole batch, over all micro-batches and replicas (as in
    torchgpipe's DeferredBatchNorm). Micro-batches are normalised by their own statistics in every mode.

    ``bucket_bytes`` is the approximate size of a gradient buffer. With ``device_messages``, stages send the framework's
    own tensors from device memory (see ``MessageMemory``) instead of host arrays. ``spatial``: the part of the images
    that the programs compute; None: whole images.
    """

    batch_norm: BatchNorm = "replica"
    bucket_bytes: int = 25 * 2**20
    device_messages: bool = False
    spatial: SpatialPart | None = None


@dataclass(frozen=True)
class Portion:
    """The share of a micro-batch in the batch whose loss it contributes to.

    ``rows``: number of its first rows that are samples; the others are padding and count in no loss. ``samples``:
    samples of the batch. ``parts``: micro-batches of all replicas into which the batch is divided. ``filled``: True if
    any of them has padding. ``totals``: divisors of the sums of losses over the whole batch, by position in the
    compiled losses. If a total is missing or negative, that of the micro-batch is used, weighted by its rows.
    """

    rows: int
    samples: int
    parts: int
    filled: bool = False
    totals: tuple[float, ...] = ()

    @property
    def weight(self) -> float:
        """The weight of a mean over the micro-batch in the mean over the batch's parts, 1 if all are equal."""
        return self.parts * self.rows / self.samples


@dataclass(frozen=True)
class Place:
    """The position of a micro-batch in the training, which determines seeds and the weights of moving statistics.

    ``step``: number of earlier updates. ``micro_batch``: 0..micro_batches-1 within the replica's step. ``portion``:
    None if all micro-batches of a step have equal sizes, and the loss of each is its own mean. ``spatial``: number of
    ranks that share the images of a micro-batch.
    """

    step: int
    replica: int
    micro_batch: int
    replicas: int
    micro_batches: int
    portion: Portion | None = None
    spatial: int = 1

    @property
    def total(self) -> int:
        """Micro-batches of a step over all replicas."""
        return self.replicas * self.micro_batches

    @property
    def shares(self) -> int:
        """Contributions to the sums of a step: each part of the images has its own. Losses are divided by it."""
        return self.total * self.spatial

    @property
    def order(self) -> int:
        """The number of micro-batches that sequential training would have processed before this one, since step 0."""
        return (self.step * self.replicas + self.replica) * self.micro_batches + self.micro_batch


@dataclass(frozen=True)
class Target:
    """The target of one output of the model: arrays of ``micro_batch_size`` rows."""

    value: Array
    sample_weight: Array | None = None


@dataclass(frozen=True)
class Outcome:
    """The results of a forward pass.

    ``sends``: tensor -> value, for every tensor in ``Stage.sends``. ``outputs``: tensor -> y_pred, for every tensor in
    ``Stage.outputs``. ``beside``: tensor -> mask and logits of y_pred, None if absent, for models with metrics.
    ``losses``: position in ``Graph.outputs`` -> the compiled loss of that output, a float without weight or scale. The
    mean over the parts of a batch is Keras' loss of the batch.

    ``loss``: the unscaled contribution of this stage to the total loss of the micro-batch (weighted losses, and the
    weight and activity regularizers and ``add_loss`` of its layers). The model's loss on a micro-batch is the sum over
    all stages. Losses are only present if there were targets.
    """

    sends: Mapping[int, Array]
    outputs: Mapping[int, Array] = field(default_factory=dict)
    beside: Mapping[int, tuple[Array | None, Array | None]] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)
    loss: float = 0.0


@dataclass(frozen=True)
class Slot:
    """The position of one variable in a flat buffer: elements ``offset .. offset + size``."""

    variable: str
    offset: int
    size: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Buffer:
    """A contiguous, writable, one-dimensional host array with the values of several variables.

    It is the program's own memory or, for a GPU, the one host copy of it in a step, so a later request sees an in-place
    allreduce (``MPI.IN_PLACE``). It stays valid until the program's next ``start_step``.
    """

    array: Array
    slots: tuple[Slot, ...]


class MessageMemory(Protocol):
    """Memory for MPI to send messages from and receive messages in."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Return an array for receiving that shares its memory with no other."""

    def first_rows(self, array: Array, rows: int | None) -> Array:
        """Return the first rows of a received array; None: all rows."""

    def to_mpi(self, array: Array) -> object:
        """Return the array's memory as bytes for mpi4py, because MPI lacks some dtypes (bfloat16)."""


class StageShape(Protocol):
    """The properties of a stage that a program uses; ``hyparflow.planning.stages.Stage`` has them."""

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
    """The ``variables`` (names) and ``received`` tensors that a source of gradients of a stage depends on."""

    variables: frozenset[str]
    received: frozenset[int]


class StageProgram(Protocol):
    """One compiled stage on one rank. Every rank that owns a stage has one program for it.

    Under GEMS, a partition can own a stage in both pipelines; one program then serves both.

    A step consists of ``start_step``; calls of ``forward`` and ``backward`` in any order in which the backward pass of
    a micro-batch follows its forward pass; the engine's reductions over ``gradients()`` and ``statistics()``; the
    optimizer; ``finish_step``.
    """

    @property
    def stage(self) -> StageShape:
        """The stage that the program computes."""

    @property
    def variables(self) -> Mapping[str, Any]:
        """Name (``variables_of``) -> Keras variable, for all variables of the stage's layers, including seed states.

        They are initialised when the program is built, and ordered as in the model.
        """

    @property
    def trainable(self) -> tuple[str, ...]:
        """Names of the variables with gradients, in the order of the slots of ``gradients()``."""

    def start_step(self, loss_scale: float = 1.0) -> None:
        """Clear gradients, statistics and kept values.

        Args:
            loss_scale: The factor of a ``LossScaleOptimizer`` that losses, and so the ``gradients()``, are multiplied
                by from now on (default: 1).
        """

    def prepare(
        self,
        place: Place,
        inputs: Mapping[int, Array],
        targets: Mapping[int, Target] | None = None,
        training: bool = True,
    ) -> None:
        """Compile programs for micro-batches like this one, after ``start_step`` for training; results are discarded.

        Args:
            place: See ``forward``.
            inputs: See ``forward``.
            targets: See ``forward``.
            training: See ``forward``.

        Raises:
            UnsupportedModel: A layer cannot be computed in parts.
        """

    def forward(
        self,
        place: Place,
        inputs: Mapping[int, Array],
        targets: Mapping[int, Target] | None = None,
        training: bool = True,
    ) -> Outcome:
        """Compute a micro-batch.

        A stage that sends nothing also computes its gradients here (forward and backward in one program), so that the
        gradients of its received tensors are ready; ``backward`` only returns them.

        Args:
            place: The micro-batch. In training, the values that backward needs are kept under ``place.micro_batch``.
            inputs: Tensor -> array, for every tensor in ``stage.receives``. They may be used without a copy, so they
                must not change until this micro-batch's backward pass is done (without training: until the outcome was
                read).
            targets: Position in ``Graph.outputs`` -> target, for the outputs of this stage that have a loss. None (not
                in training only): compute no losses.
            training: Keras' own flag. Without it nothing is kept, and ``place`` is ignored.
        """

    def backward(self, place: Place, gradients: Mapping[int, Sequence[Array]]) -> Mapping[int, Array]:
        """Accumulate the micro-batch's weight gradients, and drop the values that forward kept.

        Losses of this stage (compiled, regularizers, ``add_loss``) are differentiated here, scaled by ``loss_scale /
        place.shares``. The weight regularizer of a layer that several stages share counts on the stage with the layer's
        first node.

        Args:
            place: See ``forward``.
            gradients: Tensor -> its gradients from other stages, in the order of ``stage.sends[tensor]``, for every
                sent tensor that is ``differentiable``; the program adds them up in that order. They may be used without
                a copy, so they must not change until this returns.

        Returns:
            Tensor -> gradient, for every received tensor that is ``differentiable``.
        """

    def gradients(self) -> tuple[Buffer, ...]:
        """Return the accumulated gradients of ``trainable``, in buffers of one dtype and about ``bucket_bytes``."""

    def reaches(self) -> Mapping[int | None, Reach]:
        """Return what each source of gradients depends on; None is the stage's own losses, a tensor one that was sent.

        The result is known once training was compiled. A variable that no source reaches has no gradient;
        ``gradients()`` has zeros for it.
        """

    def statistics(self) -> tuple[Buffer, ...]:
        """Return this step's contributions to BatchNorm's moving statistics, one buffer per dtype; empty without any.

        The engine sums them in place over the owners of the same stage or shared layer within a replica (two under
        GEMS) and, unless the mode is ``replica``, over the replicas; ``finish_step`` then applies them.
        """

    def finish_step(self, place: Place) -> None:
        """Advance moving statistics and seed states to their values in sequential training after ``place.step``.

        ``place`` can be any of the step.
        """
