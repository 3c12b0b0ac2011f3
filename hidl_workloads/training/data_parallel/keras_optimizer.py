"""A Keras 3 optimizer, on the TensorFlow backend, that averages the gradients over the ranks before it applies them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI
from tensorflow.python.ops import control_flow_util

from hidl_workloads.training.data_parallel.buckets import BUCKET_BYTES
from hidl_workloads.training.data_parallel.call_order import order_of
from hidl_workloads.training.data_parallel.compression import Compression
from hidl_workloads.training.data_parallel.gpu_path import Buffers
from hidl_workloads.training.data_parallel.gpu_path import Path as GpuPath
from hidl_workloads.training.data_parallel.tensorflow_gradients import (
    GradientAverager,
    adapted_states,
    broadcast,
    broadcast_variables,
)
from hidl_workloads.training.data_parallel.weights import checksum, require_equal

_NO_XLA = "XLA does not support sums over ranks"
_FAR = 1e-3
"""Relative distance of weights that are not equal; processors of other kinds round differently."""
_NOT_WRAPPED = (
    "the model's optimizer does not average over ranks: compile with DistributedOptimizer(optimizer), or call "
    "DistributedOptimizer(model.optimizer) for a model that was loaded or copied; under mixed_float16, wrap "
    "keras.optimizers.LossScaleOptimizer"
)


def DistributedOptimizer(
    optimizer: Any,
    communicator: MPI.Comm | None = None,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    compression: Compression = "none",
    average: bool = True,
    accumulate: int = 1,
    share_memory: bool = True,
    gpu_buffers: Buffers = "auto",
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

    ``optimizer`` may also be a name, such as ``"adam"``. ``global_clipnorm`` and its kin clip the averages; sparse
    gradients (of embeddings) become dense. A variable without a gradient on any rank is left alone, as in one process.
    For ``mixed_float16``, wrap a ``LossScaleOptimizer``: all ranks then skip the same steps. Raises ``TypeError`` for
    an optimizer that averages already and ``ValueError`` for what cannot work: another backend, or float16 without a
    ``LossScaleOptimizer`` inside. ``apply`` raises ``ValueError`` in a function that XLA compiles, and if ranks have
    different learning rates.
    """
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            f"Keras uses the backend {keras.config.backend()}, but this optimizer only supports tensorflow"
        )
    optimizer = keras.optimizers.get(optimizer)
    _allow_step(optimizer)
    if hasattr(optimizer, "_averaging"):
        raise TypeError("this optimizer already averages over the ranks: wrap it only once")
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.config.dtype_policy().compute_dtype == "float16" and not scaled:
        raise ValueError(
            "with mixed_float16, ranks would skip different steps: wrap keras.optimizers.LossScaleOptimizer(optimizer)"
        )
    if accumulate > 1 and optimizer.gradient_accumulation_steps:
        raise ValueError("both accumulate and the optimizer's gradient_accumulation_steps are set: choose one")
    options = {
        "bucket_bytes": bucket_bytes,
        "compression": compression,
        "average": average,
        "accumulate": accumulate,
        "share_memory": share_memory,
        "gpu_buffers": gpu_buffers,
    }
    optimizer._averaging = _Averaging(optimizer, MPI.COMM_WORLD if communicator is None else communicator, options)
    # These are attributes instead of a class, because Keras saves classes and finds them by name.
    optimizer.apply = optimizer._averaging.apply
    optimizer.__reduce_ex__ = _refuse_copy
    return optimizer


def prepare(optimizer: Any, trainable_variables: Sequence[Any]) -> GpuPath | None:
    """Do now what the first ``apply`` of a ``DistributedOptimizer`` for these variables would do; collective.

    Returns the way of gradients on a GPU: ``gpu-aware`` or ``staged``, and why; None where there are none.
    """
    path: GpuPath | None = optimizer._averaging.prepare(list(trainable_variables)).path
    return path


def _refuse_copy(protocol: int) -> NoReturn:
    raise TypeError(
        "an optimizer that averages over ranks cannot be copied or pickled: copy it before DistributedOptimizer, or "
        "use its get_config()"
    )


def _allow_step(optimizer: Any) -> None:
    """Undo what ``BroadcastInitialState`` does to an optimizer that does not average."""
    if getattr(optimizer, "apply", None) is _refuse_step:
        del optimizer.apply


def _refuse_step(*arguments: Any, **options: Any) -> NoReturn:
    raise ValueError(_NOT_WRAPPED)


class _Averaging:
    """The averages that precede an optimizer's own ``apply``."""

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
            if not self._optimizer.built:
                self._apply(grads)  # raises Keras's own error
            trainable_variables = self._optimizer._trainable_variables
        variables = list(trainable_variables)
        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise ValueError(f"{_NO_XLA}: use tf.function(jit_compile=False) for the step")
        averager = self.prepare(variables)
        if self._options["accumulate"] == 1:
            self._applied(averager.average(grads), variables)
            return
        last = averager.deposit(grads)
        tf.cond(last, lambda: self._applied(averager.collect(last), variables), lambda: False)

    def prepare(self, variables: Sequence[Any]) -> GradientAverager:
        """Return what averages the gradients of ``variables``, which the first call makes; that is collective."""
        with tf.init_scope():
            if not self._optimizer.built:
                self._optimizer.build(variables)
            return self._averager_of(variables)

    def _applied(self, averages: Sequence[Any], variables: Sequence[Any]) -> bool:
        # Weight decay needs no gradient. In a graph, it would change weights while ranks still compare them.
        with tf.control_dependencies([average for average in averages if average is not None]):
            self._apply(averages, variables)
        return True

    def _learning_rate(self) -> float | None:
        """Return the learning rate now; None for a schedule, which follows from the optimizer's iterations."""
        optimizer = getattr(self._optimizer, "inner_optimizer", self._optimizer)
        rate = optimizer._learning_rate
        return float(rate.numpy()) if isinstance(rate, keras.Variable) else None

    def _averager_of(self, variables: Sequence[Any]) -> GradientAverager:
        paths = [variable.path for variable in variables]
        if self._averager is None:
            self._averager = GradientAverager(self._communicator, variables, **self._options)
            self._averager.learning_rate = self._learning_rate
            self._paths = paths
        elif paths != self._paths:
            raise ValueError("the trainable variables have changed: compile the model again, with a new optimizer")
        return self._averager


class BroadcastInitialState(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives every rank the weights and the optimizer's state of rank 0 before the first step.

    Weights that come into being later, in the first step, are broadcast then, before they are used. With a
    ``BackupAndRestore`` before it on rank 0, all ranks continue with the epoch and the state that rank 0 restores.

    Raises ``ValueError`` on all ranks if the model's optimizer does not average, if they have different models,
    different numbers of steps or one file for the checkpoints of several ranks; at the start of an epoch and at the end
    of the training, if weights, learning rates or epochs differ.
    """

    def __init__(self, communicator: MPI.Comm | None = None) -> None:
        super().__init__()
        self._communicator = MPI.COMM_WORLD if communicator is None else communicator
        self._sent: set[int] = set()
        self._epoch: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcast; raises ``ValueError`` for XLA, and for normalization that only ``tf.distribute`` synchronizes."""
        if self.model.jit_compile:
            raise ValueError(f"{_NO_XLA}: compile the model with jit_compile=False")
        synchronized = [layer.name for layer in _normalizations(self.model) if layer.synchronized]
        if synchronized:
            raise ValueError(
                f"synchronized=True has no effect over MPI: {', '.join(synchronized)}; omit it, and use "
                "AverageStatistics"
            )
        if self._communicator.size == 1:
            return
        self._require_averages()
        _meet(self._communicator, "the start of the training")
        require_equal(
            self._communicator,
            {name: self.params.get(name) for name in ("epochs", "steps")},
            "all ranks must take the same number of steps: give them equally many samples, or set steps_per_epoch",
        )
        _require_own_files(self._communicator, _callbacks_beside(self))
        require_equal(
            self._communicator,
            {"the model": _description(self.model), "the optimizer's settings": _settings(self.model.optimizer)},
            "all ranks must train the same model with the same optimizer",
        )
        before = adapted_states(self.model)
        broadcast(self._communicator, self.model, self.model.optimizer)
        self.model._initial_epoch = self._communicator.bcast(getattr(self.model, "_initial_epoch", None))
        if adapted_states(self.model) != before:  # values derived by adapted layers are constants in a trace
            self.model.make_train_function(force=True)
            self.model.test_function = self.model.predict_function = None
        self._sent = {id(variable) for variable in self._variables()}
        self._follow_new_weights()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Expect the first step of this epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Raise ``ValueError`` at the first step of an epoch if ranks are not alike."""
        if self._epoch is not None:
            self._require_alike(f"the start of epoch {self._epoch + 1}", self._epoch)
            self._epoch = None

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Raise ``ValueError`` if ranks are not alike."""
        self._require_alike("the end of the training", None)
        _allow_step(self.model.optimizer)

    def _require_averages(self) -> None:
        """Raise ``ValueError`` if the model's optimizer does not average, in a ``train_step`` of its own once used."""
        optimizer = self.model.optimizer
        if optimizer is None or hasattr(optimizer, "_averaging"):
            return
        if type(self.model).train_step is keras.Model.train_step:
            raise ValueError(_NOT_WRAPPED)
        optimizer.apply = _refuse_step  # a GAN has its own optimizers and never uses this one

    def _variables(self) -> list[Any]:
        optimizer = self.model.optimizer
        return [*self.model.weights, *(optimizer.variables if optimizer is not None else ())]

    def _follow_new_weights(self) -> None:
        """Have the first step of a model that is not built yet make its weights, and broadcast them, before it runs."""
        if all(layer.built for layer in self.model._flatten_layers()):
            return
        train = self.model.train_function

        def first(iterator: Any) -> Any:
            self.model.train_function = train
            self._build(iterator)
            self._broadcast_new()
            return train(iterator)

        self.model.train_function = first

    def _build(self, iterator: Any) -> None:
        """Make all weights that a step on data of ``iterator`` makes, without computing anything."""
        if not isinstance(iterator, tf.data.Iterator):
            return  # the first average compares the weights
        spec = tf.nest.map_structure(
            lambda each: None if isinstance(each, tf.OptionalSpec) else each, iterator.element_spec
        )
        if self.model.run_eagerly:
            with suppress(
                RuntimeError, ValueError
            ):  # a model without `call`, such as a GAN, cannot be built in this way
                self.model._symbolic_build(data_batch=spec)
        else:
            step = tf.autograph.experimental.do_not_convert(self.model.train_step)
            tf.function(step).get_concrete_function(spec)

    def _broadcast_new(self) -> None:
        new = [variable for variable in self._variables() if id(variable) not in self._sent]
        if new:
            broadcast_variables(self._communicator, new)
            self._sent |= {id(variable) for variable in new}

    def _require_alike(self, where: str, epoch: int | None) -> None:
        if self._communicator.size == 1:
            return
        _meet(self._communicator, where)
        optimizer = self.model.optimizer
        variables = [*self.model.trainable_variables, *(optimizer.variables if optimizer is not None else ())]
        facts: dict[str, object] = {each.path: checksum([("", np.array(each.numpy()))]) for each in variables}
        require_equal(
            self._communicator,
            {"the epoch": epoch, **facts},
            f"at {where}, these must be equal on all ranks: restore or change weights and learning rates in the same "
            "way on all ranks, or in a callback on rank 0 that precedes BroadcastInitialState",
        )
        statistics = {
            id(variable)
            for layer in _normalizations(self.model)
            for variable in (layer.moving_mean, layer.moving_variance)
        }
        _require_close(
            self._communicator,
            [each for each in self.model.non_trainable_weights if id(each) not in statistics],
            f"at {where}, all ranks must have the same, and layers changed them by each rank's own batch or random "
            "numbers: average or broadcast them in on_train_batch_end",
        )


def _require_close(communicator: MPI.Comm, variables: Sequence[Any], advice: str) -> None:
    """Raise ``ValueError`` on all ranks if ``variables`` differ by more than rounding; collective."""
    by_path = {each.path: each for each in variables}
    sums = {path: checksum([("", np.array(each.numpy()))]) for path, each in by_path.items()}
    everywhere = communicator.allgather(sums)
    first, far = everywhere[0], any(each.keys() != sums.keys() for each in everywhere)
    differing = [] if far else [path for path in first if any(each[path] != first[path] for each in everywhere)]
    for path in differing:  # one by one, because frozen weights may be most of a model
        own = np.array(by_path[path].numpy())
        known = communicator.bcast(own)
        far = far or own.shape != known.shape
        far = far or not np.allclose(own, known, _FAR, _FAR * float(np.abs(known).mean()), equal_nan=True)
    if communicator.allreduce(far, MPI.LOR):
        require_equal(communicator, sums, advice)


def _meet(communicator: MPI.Comm, name: str) -> None:
    """Wait until all ranks come to the operation ``name``; raises ``RuntimeError`` if one never does."""
    if communicator.size > 1:
        order_of(communicator).meet(name)


def _callbacks_beside(callback: Any) -> list[Any]:
    """Return the callbacks that Keras runs together with ``callback``, whose method is being called."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList) and callback in caller.callbacks:
            return list(caller.callbacks)
        frame = frame.f_back
    return [callback]


def _require_own_files(communicator: MPI.Comm, callbacks: Sequence[Any]) -> None:
    """Raise ``ValueError`` on all ranks if callbacks of several ranks write checkpoints to one path; collective."""
    kinds = {keras.callbacks.BackupAndRestore: "backup_dir", keras.callbacks.ModelCheckpoint: "filepath"}
    own = {
        str(Path(getattr(callback, attribute)).absolute()): kind.__name__
        for callback in callbacks
        for kind, attribute in kinds.items()
        if isinstance(callback, kind)
    }
    paths = communicator.allgather(own)
    shared = {path: kind for each in paths for path, kind in each.items() if sum(path in other for other in paths) > 1}
    if shared:
        written = ", ".join(f"{kind} to {path}" for path, kind in shared.items())
        raise ValueError(f"several ranks would write the same checkpoint, {written}: use the callback on rank 0 only")


def _description(model: Any) -> object:
    """Return the configuration of ``model`` without what may differ between ranks; its class if it has none."""
    try:
        return type(model).__name__, _alike(keras.saving.serialize_keras_object(model))
    except (NotImplementedError, TypeError, ValueError):  # a class that the program defines
        return type(model).__name__


def _alike(configuration: Any) -> Any:
    """Leave out seeds, initializers, shapes of first batches, addresses and compiled code."""
    if isinstance(configuration, dict):
        if configuration.get("class_name") == "__lambda__":
            return "lambda"
        left_out = ("build_config", "compile_config", "seed", "shared_object_id")
        return {
            key: _alike(value)
            for key, value in configuration.items()
            if key not in left_out and not str(key).endswith("initializer")
        }
    return [_alike(each) for each in configuration] if isinstance(configuration, (list, tuple)) else configuration


def _settings(optimizer: Any) -> object:
    """Return the configuration of ``optimizer`` without a learning rate that is a number, which is broadcast."""
    if optimizer is None:
        return None
    settings = dict(optimizer.get_config())
    if isinstance(settings.get("learning_rate"), float):
        del settings["learning_rate"]
    return type(optimizer).__name__, _alike(settings)


class AverageMetrics(keras.callbacks.Callback):  # type: ignore[misc]
    """At the end of each epoch, replaces every metric by that of all ranks' samples together.

    The metrics' states are added and their results computed from the sums, as if one process had seen all samples: the
    ranks may have different numbers of them, also for validation. ``additive`` names metrics of your own whose
    variables are such sums. What ``evaluate`` returns stays each rank's own; with this callback, ``evaluated`` has the
    results of all together.

    Callbacks that decide by a metric (``EarlyStopping``, ``ReduceLROnPlateau``), or that evaluate, come behind it, or
    ranks decide differently and wait for each other for ever. Raises ``ValueError`` on all ranks for metrics whose
    states cannot be added, and for other entries of ``logs`` that differ between ranks.
    """

    def __init__(self, communicator: MPI.Comm | None = None, *, additive: Collection[str] = ()) -> None:
        super().__init__()
        self.evaluated: dict[str, Any] = {}
        self._communicator = MPI.COMM_WORLD if communicator is None else communicator
        self._additive = additive
        self._in_epoch = False
        self._own: dict[str, Any] = {}
        self._together: dict[str, Any] = {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Raise ``ValueError`` for metrics that cannot be averaged."""
        self._metrics()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Expect this epoch's metrics."""
        self._in_epoch = True
        self._own, self._together = {}, {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace the metrics in ``logs``."""
        self._in_epoch = False
        self._remember()
        logs = {} if logs is None else logs
        _meet(self._communicator, "the end of an epoch")
        entries = {name: np.asarray(value).tolist() for name, value in logs.items()}
        others = {name: value for name, value in entries.items() if name not in self._own}
        require_equal(
            self._communicator,
            {name: others.get(name) for name in entries},
            "put callbacks that add to the logs after AverageMetrics, or have them add the same on all ranks",
        )
        moved = [
            name for name in entries if name in self._own and not np.array_equal(logs[name], self._own[name], True)
        ]
        if moved:
            raise ValueError(
                f"another callback evaluated {', '.join(moved)} before AverageMetrics: put it after AverageMetrics"
            )
        logs.update({name: self._together[name] for name in entries if name in self._own})

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Take the results of the training before the evaluation resets the metrics."""
        if self._in_epoch:
            self._remember()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Take the results of the evaluation."""
        own, self.evaluated = self._results()
        if self._in_epoch:
            self._own |= {f"val_{name}": value for name, value in own.items()}
            self._together |= {f"val_{name}": value for name, value in self.evaluated.items()}

    def _remember(self) -> None:
        """Take the results of the training, once in an epoch."""
        if not self._own:
            self._own, self._together = self._results()

    def _metrics(self) -> list[Any]:
        """Return the metrics without those that only hold others."""
        _meet(self._communicator, "the metrics")
        found = [each for metric in self.model.metrics for each in getattr(metric, "metrics", [metric])]
        unknown = [each.name for each in found if not _adds(each) and each.name not in self._additive]
        require_equal(
            self._communicator,
            {each.name: [tuple(variable.shape) for variable in each.variables] for each in found},
            "all ranks must have the same metrics",
        )
        if unknown:
            raise ValueError(
                f"these metrics cannot be combined from those of the ranks: {', '.join(unknown)}; omit them, "
                "or list those whose variables are sums over samples: AverageMetrics(additive=[...])"
            )
        return found

    def _results(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the metrics of this rank and of all together; collective."""
        variables = [variable for metric in self._metrics() for variable in metric.variables]
        own = [np.array(variable.numpy()) for variable in variables]
        results = self._computed()
        for variable, value in zip(variables, own, strict=True):
            total = value.astype(np.float64)
            self._communicator.Allreduce(MPI.IN_PLACE, total, MPI.SUM)
            variable.assign(total.astype(value.dtype))
        together = self._computed()
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)
        return results, together

    def _computed(self) -> dict[str, Any]:
        arrays = {name: np.asarray(value) for name, value in self.model.get_metrics_result().items()}
        return {name: float(array) if array.ndim == 0 else array for name, array in arrays.items()}


def _adds(metric: Any) -> bool:
    """Return True if the states of ``metric`` over parts of the samples add up to that over all."""
    kinds = keras.metrics
    if isinstance(metric, (kinds.PearsonCorrelation, kinds.ConcordanceCorrelation)):  # may be computed per batch
        return False
    if isinstance(metric, (kinds.Mean, kinds.Sum)):
        return True
    return type(metric).__module__.startswith("keras.")


class AverageStatistics(keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the moving means and variances of ``BatchNormalization`` over the ranks, before anyone reads them.

    That is before each evaluation and at the end of each epoch: put it before callbacks that save. Without it, they
    stay those of each rank's own samples. In training, each rank normalizes by its own batch in either case.
    """

    def __init__(self, communicator: MPI.Comm | None = None) -> None:
        super().__init__()
        self._communicator = MPI.COMM_WORLD if communicator is None else communicator

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average."""
        self._average()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Average."""
        self._average()

    def _average(self) -> None:
        _meet(self._communicator, "the moving statistics")
        for layer in _normalizations(self.model):
            for variable in (layer.moving_mean, layer.moving_variance):
                total = np.array(variable.numpy(), np.float64)
                self._communicator.Allreduce(MPI.IN_PLACE, total, MPI.SUM)
                variable.assign(total / self._communicator.size)


def _normalizations(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
