"""Prove that ranks train together: one step in partitions gives the weights that one process gets alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hidl_workloads.findings import Check

os.environ["KERAS_BACKEND"] = "tensorflow"  # Keras reads it when it is imported

if TYPE_CHECKING:
    from mpi4py import MPI

_MICRO_BATCHES, _ROWS, _WIDTH = 2, 4, 8
_TOLERANCE = 1e-12  # float64


def checks(communicator: MPI.Comm) -> Iterator[Check]:
    """Compare one partition per rank with the same step of the whole model in this process, accumulating gradients."""
    import numpy as np

    together, alone = _together(communicator), _alone()
    worst = max((float(np.max(np.abs(value - alone[name]))) for name, value in together.items()), default=0.0)
    detail = (
        f"{communicator.size} partitions trained a step; their weights differ by at most {worst:.1e} from one process's"
    )
    yield Check("a step in partitions", bool(together) and worst <= _TOLERANCE, detail)


def _model() -> Any:
    """A dense network in float64 with an addition over several layers, the same on every rank."""
    import keras

    keras.utils.set_random_seed(1)
    inputs = keras.Input((_WIDTH,), dtype="float64")
    x = first = keras.layers.Dense(_WIDTH, dtype="float64", name="first")(inputs)
    for number in range(6):
        x = keras.layers.Dense(_WIDTH, activation="tanh", dtype="float64", name=f"dense{number}")(x)
    x = keras.layers.Add(dtype="float64")([x, first])
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float64", name="last")(x))
    # If given by name, the loss would be computed in float32.
    model.compile(keras.optimizers.SGD(0.1), loss=keras.losses.MeanSquaredError(dtype="float64"))
    return model


def _data() -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(1)
    rows = _MICRO_BATCHES * _ROWS
    return random.standard_normal((rows, _WIDTH)), random.standard_normal((rows, 1))


def _together(communicator: MPI.Comm) -> dict[str, Any]:
    """The weights of this rank's stages after one step; collective."""
    import hyparflow
    import keras
    from hyparflow.engine.engine import Batch, Engine

    x, y = _data()
    model = _model()
    plan = hyparflow.plan(
        model, partitions=communicator.size, batch_size=len(x), micro_batches=_MICRO_BATCHES, costs="estimated"
    )
    engine = Engine(model, plan, communicator)
    engine.train_step(Batch((x,), (y,)))
    names = {name for program in engine.programs.values() for name in program.trainable}
    weights = {name: keras.ops.convert_to_numpy(engine.variables[name]) for name in names}
    engine.close()
    return weights


def _alone() -> dict[str, Any]:
    """The weights of the whole model after the same step in one process: gradients of the micro-batches added up."""
    import keras
    import tensorflow as tf
    from hyparflow.graph.calls import variables_of

    x, y = _data()
    model = _model()
    sums = [tf.zeros_like(variable.value) for variable in model.trainable_variables]
    for begin in range(0, len(x), _ROWS):
        with tf.GradientTape() as tape:
            difference = model(x[begin : begin + _ROWS], training=True) - y[begin : begin + _ROWS]
            loss = tf.reduce_mean(difference**2) / _MICRO_BATCHES
        values = [variable.value for variable in model.trainable_variables]
        sums = [total + each for total, each in zip(sums, tape.gradient(loss, values), strict=True)]
    model.optimizer.apply(sums, model.trainable_variables)
    return {name: keras.ops.convert_to_numpy(variable) for name, variable in variables_of(model).items()}
