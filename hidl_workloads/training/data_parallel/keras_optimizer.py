"""A Keras 3 optimizer, on the TensorFlow backend, that averages the gradients over the ranks before it applies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from mpi4py import MPI

from hidl_workloads.training.data_parallel.buckets import BUCKET_BYTES
from hidl_workloads.training.data_parallel.compression import Compression
from hidl_workloads.training.data_parallel.tensorflow_gradients import GradientAverager, broadcast


def DistributedOptimizer(
    optimizer: Any,
    communicator: MPI.Comm | None = None,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    compression: Compression = "none",
    average: bool = True,
    accumulate: int = 1,
    share_memory: bool = True,
) -> Any:
    """Return ``optimizer`` itself, whose ``apply`` from now on averages the gradients over ``communicator`` first.

    ::

        model.compile(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.1)), loss=...)
        model.fit(x_of_this_rank, y_of_this_rank, callbacks=[BroadcastInitialState(), AverageMetrics()])

    It stays an object of its own class with its own configuration, so a saved model says nothing of ranks and loads
    anywhere; to go on training on ranks, call this with the loaded model's ``optimizer``. All ranks must take the same
    number of steps. With ``accumulate=k`` the weights change at every k-th step, by the mean of k gradients. The other
    arguments are those of ``GradientAverager``. ``MPI.COMM_WORLD`` is the default communicator. The first ``apply`` is
    collective.

    ``global_clipnorm`` and its kin clip the averages; sparse gradients (of embeddings) become dense. For
    ``mixed_float16``, wrap a ``LossScaleOptimizer``: all ranks then skip the same steps. Raises ``TypeError`` for an
    optimizer that averages already and ``ValueError`` for what cannot work: another backend, or float16 without a
    ``LossScaleOptimizer`` inside.
    """
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            f"Keras computes with {keras.config.backend()}, and this optimizer averages for tensorflow only"
        )
    if hasattr(optimizer, "_averaging"):
        raise TypeError("this optimizer averages over the ranks already: wrap it once")
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.config.dtype_policy().compute_dtype == "float16" and not scaled:
        raise ValueError(
            "with mixed_float16, each rank would skip other steps: wrap keras.optimizers.LossScaleOptimizer(optimizer)"
        )
    if accumulate > 1 and optimizer.gradient_accumulation_steps:
        raise ValueError("both accumulate and the optimizer's gradient_accumulation_steps are set: choose one")
    options = {
        "bucket_bytes": bucket_bytes,
        "compression": compression,
        "average": average,
        "accumulate": accumulate,
        "share_memory": share_memory,
    }
    optimizer._averaging = _Averaging(optimizer, MPI.COMM_WORLD if communicator is None else communicator, options)
    # An attribute of this object, not a class of our own: Keras saves and finds classes by their names.
    optimizer.apply = optimizer._averaging.apply
    return optimizer


class _Averaging:
    """What stands before an optimizer's own ``apply``."""

    def __init__(self, optimizer: Any, communicator: MPI.Comm, options: dict[str, Any]) -> None:
        self._optimizer = optimizer
        self._apply = optimizer.apply
        self._communicator = communicator
        self._options = options
        self._averager: GradientAverager | None = None
        self._paths: list[str] = []

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Average ``grads`` over the ranks, and apply the averages; see ``keras.optimizers.Optimizer.apply``."""
        if trainable_variables is None:
            trainable_variables = self._optimizer._trainable_variables
        variables = list(trainable_variables)
        with tf.init_scope():
            if not self._optimizer.built:
                self._optimizer.build(variables)
            averager = self._averager_of(variables)
        if self._options["accumulate"] == 1:
            self._apply(averager.average(grads), variables)
            return
        last = averager.deposit(grads)
        tf.cond(last, lambda: self._applied(averager.collect(last), variables), lambda: False)

    def _applied(self, averages: Sequence[Any], variables: Sequence[Any]) -> bool:
        self._apply(averages, variables)
        return True

    def _averager_of(self, variables: Sequence[Any]) -> GradientAverager:
        paths = [variable.path for variable in variables]
        if self._averager is None:
            self._averager = GradientAverager(self._communicator, variables, **self._options)
            self._paths = paths
        elif paths != self._paths:
            raise ValueError("the trainable variables have changed: compile the model again, with a new optimizer")
        return self._averager


class BroadcastInitialState(keras.callbacks.Callback):  # type: ignore[misc]
    """Before the first step, gives every rank the weights and the optimizer's state of rank 0."""

    def __init__(self, communicator: MPI.Comm | None = None) -> None:
        super().__init__()
        self._communicator = MPI.COMM_WORLD if communicator is None else communicator

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcast; raises ``ValueError`` for a model that XLA compiles, which cannot average."""
        if self.model.jit_compile:
            raise ValueError("XLA cannot hold sums over ranks: compile the model with jit_compile=False")
        broadcast(self._communicator, self.model, self.model.optimizer)


class AverageMetrics(keras.callbacks.Callback):  # type: ignore[misc]
    """At the end of each epoch, replaces every metric by its mean over the ranks.

    Callbacks that decide by a metric (``EarlyStopping``, ``ReduceLROnPlateau``) come behind it, or ranks decide
    differently and wait for each other for ever.
    """

    def __init__(self, communicator: MPI.Comm | None = None) -> None:
        super().__init__()
        self._communicator = MPI.COMM_WORLD if communicator is None else communicator

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average ``logs`` in place; raises ``ValueError``, on all ranks, where they have different metrics."""
        own = {} if logs is None else logs
        everywhere = self._communicator.allgather(own)
        if any(other.keys() != own.keys() for other in everywhere):
            raise ValueError(f"the ranks have different metrics: {[sorted(other) for other in everywhere]}")
        for name in own:
            own[name] = sum(float(other[name]) for other in everywhere) / len(everywhere)
