"""Does Horovod train: PyTorch, a TensorFlow tape and Keras's ``fit``, each on all ranks against one process alone.

Without TensorFlow in the stack, PyTorch.

Horovod can be broken without a word: under Keras 3 an unpatched one ends with status 0 and never reduces a gradient.
So what counts is the weights. Every rank trains on its share of each batch; afterwards all ranks must hold the same
bits, and these must be what a single process gets from the whole batches.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hidl_workloads.findings import Check
from hidl_workloads.training.data_parallel.weights import checksum

if TYPE_CHECKING:
    from mpi4py import MPI

Weights = list[NDArray[Any]]

_TOLERANCE = 1e-6
_STEPS, _SHARE, _INPUTS, _HIDDEN, _OUTPUTS = 2, 8, 5, 7, 3
_LEARNING_RATE, _MOMENTUM = 0.1, 0.9
# Seconds after which Horovod ends the other ranks if one fails; they would wait until the verification's time limit.
_STALLED = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "20", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60"}


@dataclass(frozen=True)
class Task:
    """The task: float32 inputs and outputs (steps, ranks, share, features), and the initial weights."""

    inputs: NDArray[np.float32]
    outputs: NDArray[np.float32]
    start: Weights

    @classmethod
    def for_ranks(cls, ranks: int) -> Task:
        """The same on every rank."""
        random = np.random.default_rng(0)
        shapes = [(_INPUTS, _HIDDEN), (_HIDDEN,), (_HIDDEN, _OUTPUTS), (_OUTPUTS,)]
        return cls(
            random.standard_normal((_STEPS, ranks, _SHARE, _INPUTS), np.float32),
            random.standard_normal((_STEPS, ranks, _SHARE, _OUTPUTS), np.float32),
            [random.standard_normal(shape, np.float32) for shape in shapes],
        )

    def of_rank(self, rank: int) -> Task:
        """Return the part of one rank."""
        return Task(self.inputs[:, [rank]], self.outputs[:, [rank]], self.start)

    def batches(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """The batch of each step."""
        for inputs, outputs in zip(self.inputs, self.outputs, strict=True):
            yield inputs.reshape(-1, _INPUTS), outputs.reshape(-1, _OUTPUTS)


def checks(communicator: MPI.Comm) -> Iterable[Check]:
    """See ``hidl_workloads.verify``."""
    os.environ.update({name: value for name, value in _STALLED.items() if name not in os.environ})
    yield from _guarded("horovod", lambda: _controllers(communicator))
    task = Task.for_ranks(communicator.size)
    trainings = {"torch": _torch}
    if importlib.util.find_spec("tensorflow"):
        trainings |= {"tensorflow tape": _tape, "keras fit": _fit}
    for name, train in trainings.items():
        yield from _guarded(name, lambda name=name, train=train: _training(communicator, name, train, task))  # type: ignore[misc]


def _guarded(name: str, check: Callable[[], list[Check]]) -> list[Check]:
    """The findings of ``check``; whatever it raises is one."""
    try:
        return check()
    except Exception as error:
        return [Check(f"{name}: trains", False, f"{type(error).__name__}: {error}".splitlines()[0])]


def _controllers(communicator: MPI.Comm) -> list[Check]:
    import horovod.torch as hvd

    hvd.init()
    built = {"MPI": hvd.mpi_built(), "gloo": hvd.gloo_built()}
    operations = {"NCCL": hvd.nccl_built(), "CUDA": hvd.cuda_built()}
    there = [name for name, is_built in {**built, **operations}.items() if is_built]
    seen = f"{hvd.size()} ranks, built with {', '.join(there)}"
    return [Check("horovod: world and controllers", hvd.size() == communicator.size and all(built.values()), seen)]


def _training(communicator: MPI.Comm, name: str, train: Callable[[Task, bool], Weights], task: Task) -> list[Check]:
    """Two findings, of the same names on every rank."""
    ours = train(task.of_rank(communicator.rank), True)
    alone = train(task, False)
    sums = communicator.allgather(checksum((str(number), array) for number, array in enumerate(ours)))
    far = max(float(np.abs(a - b).max()) for a, b in zip(ours, alone, strict=True))
    moved = max(float(np.abs(a - b).max()) for a, b in zip(ours, task.start, strict=True))
    equal = len(set(sums)) == 1
    return [
        Check(f"{name}: weights equal on all ranks", equal, f"sha256 {sums[0][:12]}" if equal else "they differ"),
        Check(
            f"{name}: weights equal to those of one process on the joint batch",
            far <= _TOLERANCE < moved,
            f"largest difference {far:.1e} after {_STEPS} steps" if moved > _TOLERANCE else "nothing was learned",
        ),
    ]


def _torch(task: Task, distributed: bool) -> Weights:
    import horovod.torch as hvd
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(_INPUTS, _HIDDEN), torch.nn.Tanh(), torch.nn.Linear(_HIDDEN, _OUTPUTS))
    weights = list(model.parameters())
    others = distributed and hvd.rank() != 0
    with torch.no_grad():
        for weight, start in zip(weights, task.start, strict=True):
            weight.copy_(torch.zeros_like(weight) if others else torch.from_numpy(start.T.copy()))
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM)
    if distributed:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for inputs, outputs in task.batches():
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(model(torch.from_numpy(inputs)), torch.from_numpy(outputs)).backward()
        optimizer.step()
    return [weight.detach().numpy().T.copy() for weight in weights]


def _keras_model(task: Task, others: bool) -> Any:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    model = keras.Sequential(
        [keras.layers.Input((_INPUTS,)), keras.layers.Dense(_HIDDEN, "tanh"), keras.layers.Dense(_OUTPUTS)]
    )
    model.set_weights([np.zeros_like(start) if others else start for start in task.start])
    return model


def _tape(task: Task, distributed: bool) -> Weights:
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    hvd.init()
    model = _keras_model(task, distributed and hvd.rank() != 0)
    optimizer = keras.optimizers.SGD(_LEARNING_RATE, _MOMENTUM)
    if distributed:
        hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function  # type: ignore[untyped-decorator]
    def step(inputs: tf.Tensor, outputs: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - outputs) ** 2)
        tape = hvd.DistributedGradientTape(tape) if distributed else tape
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    for inputs, outputs in task.batches():
        step(tf.constant(inputs), tf.constant(outputs))
    return list(model.get_weights())


def _fit(task: Task, distributed: bool) -> Weights:
    import horovod.tensorflow.keras as hvd
    import keras

    hvd.init()
    model = _keras_model(task, others=False)
    optimizer = keras.optimizers.SGD(_LEARNING_RATE, _MOMENTUM)
    callbacks = []
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    model.compile(optimizer, keras.losses.MeanSquaredError())
    inputs, outputs = (np.concatenate(list(column)) for column in zip(*task.batches(), strict=True))
    batch = len(inputs) // _STEPS
    model.fit(inputs, outputs, batch_size=batch, shuffle=False, verbose=0, callbacks=callbacks)
    return list(model.get_weights())
