"""TensorFlow's gradients, averaged over the ranks inside the graph, while other parts of it still run."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.training.data_parallel import weights
from hidl_workloads.training.data_parallel.allreduce import Allreduce
from hidl_workloads.training.data_parallel.buckets import BUCKET_BYTES, Gradient, plan
from hidl_workloads.training.data_parallel.call_order import order_of
from hidl_workloads.training.data_parallel.choice import check, choose, require_the_same
from hidl_workloads.training.data_parallel.compression import Compression, numpy_halves
from hidl_workloads.training.data_parallel.gpu_path import Buffers, Path, choose_path
from hidl_workloads.training.data_parallel.tensorflow_buffers import BucketSums, OnGpu, OnHost
from hidl_workloads.training.data_parallel.tensorflow_devices import HOST, TensorFlowGpu, is_host, place_of
from hidl_workloads.training.data_parallel.weights import require_equal

#: Types in which 16-bit gradients are summed.
_WIDER = {"bfloat16": "float32", "float16": "float32"}


def broadcast(communicator: MPI.Comm, model: Any, optimizer: Any = None) -> None:
    """Give every rank the weights of rank 0's Keras ``model``, and the state of its ``optimizer``; collective.

    Where any rank's optimizer is built, the others' are built first. The states of random number generators (dropout)
    are not weights: they stay those of each rank. Raises ``ValueError`` on all ranks if these have different models, or
    layers that are adapted to different data.
    """
    if communicator.size == 1:
        return
    order = order_of(communicator)
    variables = list(model.weights)
    if optimizer is not None:
        (built,) = order.meet("the optimizer's state of rank 0", int(optimizer.built))
        if built and not optimizer.built:
            optimizer.build(model.trainable_variables)
        variables += optimizer.variables
    order.meet("the state of rank 0's adapted layers")
    require_equal_adaptation(communicator, model)
    broadcast_variables(communicator, variables)
    finalize_adapted_layers(model)


def broadcast_variables(communicator: MPI.Comm, variables: Sequence[Any]) -> None:
    """Give every rank the values of rank 0's Keras ``variables``; collective.

    Raises ``ValueError`` on all ranks if names, shapes or types differ.
    """
    order_of(communicator).meet("the weights of rank 0")
    facts: dict[str, object] = {variable.path: (tuple(variable.shape), variable.dtype) for variable in variables}
    facts["the number of weights"] = len(variables)
    require_equal(communicator, facts, "all ranks must build the same model, with the same names, in the same order")
    values = [np.array(variable.numpy()) for variable in variables]
    weights.broadcast(communicator, [value.reshape(-1).view(np.uint8) for value in values])  # MPI has no bfloat16
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def finalize_adapted_layers(model: Any) -> None:
    """Compute what adapted layers of ``model`` (``Normalization``) derive from their weights, after these changed."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def require_equal_adaptation(communicator: MPI.Comm, model: Any) -> None:
    """Raise ``ValueError`` on all ranks if layers of ``model`` were adapted to different data; collective.

    A ``Normalization`` may be adapted on rank 0 alone, because the others get its weights. Vocabularies and boundaries
    are no weights and must be equal.
    """
    states = communicator.allgather(adapted_states(model))
    first = states[0]
    odd = [
        (rank, name)
        for rank, state in enumerate(states)
        for name, digest in state.items()
        if digest is not None and digest != first.get(name)
    ]
    if odd:
        raise ValueError(
            f"ranks {sorted({rank for rank, _ in odd})} of {communicator.size} differ from rank 0 in what "
            f"{', '.join(sorted({name for _, name in odd}))} was adapted to: adapt layers to the same samples on all "
            "ranks, namely those of all ranks together"
        )


def adapted_states(model: Any) -> dict[str, str | None]:
    """Return a digest of what each layer of ``model`` was adapted to, by name; None if it was not, or cannot be."""
    return {layer.name: _adapted_state(layer) for layer in model._flatten_layers()}


def _adapted_state(layer: Any) -> str | None:
    state: object
    if isinstance(layer, keras.layers.Normalization):
        if layer.input_mean is not None or not layer.built:
            return None
        mean, variance = layer.adapt_mean.numpy(), layer.adapt_variance.numpy()
        if not mean.any() and (variance == 1).all():
            return None
        state = (mean.tolist(), variance.tolist())
    elif isinstance(layer, keras.layers.Discretization):
        state = [float(boundary) for boundary in layer.bin_boundaries or ()]
    elif hasattr(layer, "get_vocabulary"):
        state = layer.get_vocabulary()
    else:
        return None
    return hashlib.sha256(repr(state).encode()).hexdigest()


def named_weights(model: Any) -> Iterable[tuple[str, NDArray[Any]]]:
    """Yield every trainable variable's path and value, as a copy, in the model's order."""
    for variable in model.trainable_variables:
        yield variable.path, variable.numpy()


class GradientAverager:
    """Averages the gradients of Keras ``variables`` over ``communicator``, in a ``tf.function`` or outside of one.

    ::

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = ...
            gradients = tape.gradient(loss, [variable.value for variable in variables])
            optimizer.apply(averager.average(gradients), variables)

    The graph hands each bucket over as soon as its gradients are there, whatever the order (``deposit``), and waits for
    the sums when it has handed over all (``collect``). The sums are started strictly in the planned order, so that all
    ranks start the same ones.

    The options are those of ``torch_gradients.GradientAverager``; but ``accumulate`` backward passes give the mean of
    their gradients, as Keras's own ``gradient_accumulation_steps`` does. A gradient that some ranks lack counts as zero
    there; one that all lack stays ``None``: outside of a ``tf.function`` in each step, inside as in the first one, and
    a later step with other gradients raises ``ValueError`` on all ranks. On one rank, without accumulation, nothing is
    done at all. Gradients of bfloat16 and float16 weights are summed in float32. XLA (``jit_compile``) cannot hold such
    functions. The constructor and ``close`` are collective. Raises ``TypeError`` for types that MPI does not have and
    ``ValueError`` for ranks that disagree, at the first average also in the values of ``variables``.
    """

    def __init__(
        self,
        communicator: MPI.Comm,
        variables: Sequence[Any],
        bucket_bytes: int = BUCKET_BYTES,
        *,
        compression: Compression = "none",
        average: bool = True,
        accumulate: int = 1,
        share_memory: bool = True,
        gpu_buffers: Buffers = "auto",
    ) -> None:
        check(compression, accumulate)
        self.path: Path | None = None
        """The way of gradients on a GPU; None where there are none, or on one rank."""
        self._communicator = communicator
        self._order = order_of(communicator)
        self._accumulate = accumulate
        self._variables = list(variables)
        self._order.meet("its first average")
        gradients = [Gradient(v.path, int(np.prod(v.shape)), _WIDER.get(v.dtype, v.dtype)) for v in self._variables]
        self._buckets = plan(gradients, bucket_bytes) if communicator.size > 1 or accumulate > 1 else ()
        self._place = place_of(self._variables)
        options = (bucket_bytes, compression, average, accumulate, share_memory, gpu_buffers, is_host(self._place))
        require_the_same(communicator, gradients, *options)
        halves = None if compression == "none" else numpy_halves(compression)
        share = 1 / ((communicator.size if average else 1) * accumulate)
        gpu = None if is_host(self._place) or communicator.size == 1 else TensorFlowGpu(self._place)
        if gpu is not None:
            self.path = choose_path(communicator, gpu, gpu_buffers, compressed=halves is not None)
        self._sums: BucketSums
        if gpu is not None and self.path is not None and self.path.name == "gpu-aware":
            self._allreduce = Allreduce(communicator, share)
            self._sums = OnGpu(communicator, self._allreduce, self._buckets, gpu, share)
        else:
            self._allreduce = choose(communicator, self._buckets, halves, share=share, share_memory=share_memory)
            self._sums = OnHost(self._allreduce, self._buckets)
        self._passes = [0] * len(self._buckets)
        self._next = 0
        self._absent: frozenset[int] | None = None
        self._starting = threading.Lock()
        self._started_equal = False
        self.learning_rate: Callable[[], float | None] = lambda: None
        """Learning rate of the update; ``ValueError`` on all ranks, before the update, if it differs."""

    def average(self, gradients: Sequence[tf.Tensor | None]) -> list[tf.Tensor | None]:
        """Return the averages over the ranks of ``gradients``, in the order and shapes of the variables."""
        if not self._buckets:
            return list(gradients)
        return self.collect(self.deposit(gradients))

    def deposit(self, gradients: Sequence[tf.Tensor | None]) -> tf.Tensor:
        """Hand this backward pass's ``gradients`` over; returns whether this was the last pass before ``collect``."""
        if self._absent is None and not tf.executing_eagerly():
            self._absent = self._lacking_everywhere(gradients)
        dense = [
            tf.zeros(variable.shape, _WIDER.get(variable.dtype, variable.dtype))
            if gradient is None
            else tf.cast(tf.convert_to_tensor(gradient), _WIDER.get(variable.dtype, variable.dtype))
            for gradient, variable in zip(gradients, self._variables, strict=True)
        ]
        last = []
        for number, bucket in enumerate(self._buckets):
            presence = np.array([gradients[index] is not None for index in bucket.members], bucket.dtype)
            with tf.device(self._place):
                flat = tf.concat([tf.reshape(dense[index], [-1]) for index in bucket.members], 0)
            with tf.device(self._sums.place):
                last.append(tf.py_function(partial(self._take, number, presence), [flat], tf.bool))
        with tf.device(HOST):
            return tf.reduce_all(tf.stack(last))

    def collect(self, deposited: tf.Tensor) -> list[tf.Tensor | None]:
        """Return the averages, when ``deposited`` is there."""
        eager = tf.executing_eagerly()
        with tf.device(self._sums.place), tf.control_dependencies([deposited]):
            flat = tf.py_function(partial(self._finish, eager), [], [bucket.dtype for bucket in self._buckets])
        absent = self._lacking() if eager else self._absent
        gradients: dict[int, tf.Tensor] = {}
        with tf.device(self._place):
            for bucket, total in zip(self._buckets, flat, strict=True):
                tensor = tf.identity(total)  # copied to the device before it is cut into pieces
                for index, offset in zip(bucket.members, bucket.offsets, strict=True):
                    variable = self._variables[index]
                    part = tensor[offset : offset + int(np.prod(variable.shape))]
                    gradients[index] = tf.cast(tf.reshape(part, variable.shape), variable.dtype)
        return [None if index in (absent or ()) else gradients[index] for index in range(len(self._variables))]

    def close(self) -> None:
        """Give the communicator and the buffers back; averages that were returned are gone."""
        self._sums.close()
        self._allreduce.close()

    def _take(self, number: int, presence: NDArray[Any], flat: tf.Tensor) -> bool:
        """Take one bucket's gradients; the graph calls this, from any thread.

        They must not be changed in place: a gradient may be a constant that all calls of a function share.
        """
        self._sums.put(number, flat, presence, first=self._passes[number] == 0)
        self._passes[number] += 1
        last = self._passes[number] == self._accumulate
        if last:
            self._start_full()
        self._allreduce.progress()
        return last

    def _start_full(self) -> None:
        with self._starting:
            while self._next < len(self._buckets) and self._passes[self._next] == self._accumulate:
                self._sums.start(self._next)
                self._next += 1

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _lacking_everywhere(self, gradients: Sequence[tf.Tensor | None]) -> frozenset[int]:
        """Return the variables of which no rank has a gradient in the graph that is traced; collective."""
        own = {index for index, gradient in enumerate(gradients) if gradient is None}
        return frozenset(own.intersection(*self._communicator.allgather(own)))

    def _lacking(self) -> frozenset[int]:
        """Return the variables of which no rank had a gradient in this step."""
        return frozenset(
            index
            for number, bucket in enumerate(self._buckets)
            for index, present in zip(bucket.members, self._sums.presence(number), strict=True)
            if not present
        )

    def _require_equal_start(self) -> None:
        """Raise ``ValueError`` on all ranks, before the first update, unless all began with the same weights."""
        require_equal(
            self._communicator,
            {variable.path: weights.checksum([("", np.array(variable.numpy()))]) for variable in self._variables},
            "all ranks must start with the same weights: use BroadcastInitialState in fit, or "
            "tensorflow_gradients.broadcast(communicator, model) after the model is built and before its first step",
        )
        self._started_equal = True

    def _finish(self, eager: bool) -> list[tf.Tensor]:
        self._passes = [0] * len(self._buckets)
        self._next = 0
        rate = self.learning_rate()
        mark = zlib.crc32(repr(rate).encode())
        with self._order.operation("an average"):
            self._allreduce.complete(self._order.wait)
            largest, negative = self._order.largest(mark, -mark)
        self._allreduce.finish()
        if not self._started_equal:
            self._require_equal_start()
        if largest != -negative:
            require_equal(
                self._communicator, {"the learning rate": rate}, "all ranks must change learning rates in the same way"
            )
        if not eager and (changed := self._lacking() ^ (self._absent or frozenset())):
            names = ", ".join(self._variables[index].path for index in sorted(changed))
            raise ValueError(
                f"some steps have no gradient for {names}: use an optimizer for each kind of step, or run_eagerly=True"
            )
        return self._sums.averages()
