"""Keras programs in one process on the joint batches and on ranks with their parts, written as JSON to argv[1]:
for each the largest difference of anything that it sees, or what was raised on each rank.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from errors import error_of
from mpi4py import MPI

from hidl_workloads.training.data_parallel.keras_optimizer import (
    AverageMetrics,
    AverageStatistics,
    BroadcastInitialState,
    DistributedOptimizer,
)
from hidl_workloads.training.data_parallel.weights import checksum

WORLD = MPI.COMM_WORLD
STEPS, PER_RANK, FEATURES = 3, 4, 5


def mine(joint: bool, samples: Any) -> Any:
    """All samples, or the share of this rank of each batch."""
    if joint:
        return samples
    return samples.reshape(STEPS, WORLD.size, PER_RANK, -1)[:, WORLD.rank].reshape(STEPS * PER_RANK, -1)


def data() -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    x = random.standard_normal((STEPS * WORLD.size * PER_RANK, FEATURES)).astype(np.float32)
    return x, x.sum(1, keepdims=True) + 1


def wrap(joint: bool, optimizer: Any) -> Any:
    return optimizer if joint else DistributedOptimizer(optimizer, WORLD, bucket_bytes=100)


def start(joint: bool, *callbacks: Any) -> list[Any]:
    return [*callbacks] if joint else [BroadcastInitialState(WORLD), AverageMetrics(WORLD), *callbacks]


def slots(optimizer: Any) -> dict[str, Any]:
    """The variables of an optimizer, by name."""
    return {variable.path: variable.numpy() for variable in optimizer.variables}


def two_headed() -> Any:
    inputs = keras.Input((FEATURES,))
    h = keras.layers.Dense(4, activation="tanh")(inputs)
    return keras.Model(inputs, [keras.layers.Dense(1)(h), keras.layers.Dense(1)(h)])


class Spare(keras.layers.Dense):  # type: ignore[misc]
    """Has weights, and does not use them."""

    def call(self, inputs: Any) -> Any:
        return inputs


def unused_weights(joint: bool, *, eager: bool) -> list[Any]:
    """Momentum and weight decay must leave alone what has no gradient."""
    layers = [keras.Input((FEATURES,)), keras.layers.Dense(4), Spare(4), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    optimizer = wrap(joint, keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1))
    model.compile(optimizer, loss="mse", run_eagerly=eager)
    x, y = (mine(joint, each) for each in data())
    batch = len(x) // STEPS
    history = model.fit(x, y, batch, epochs=2, shuffle=False, verbose=0, callbacks=start(joint)).history
    return [*model.get_weights(), slots(optimizer), *history.values()]


def other_gradients_in_each_step(joint: bool) -> list[Any]:
    """Outside of a graph, the two outputs are trained in turn."""
    model = two_headed()
    optimizer = wrap(joint, keras.optimizers.AdamW(0.1))
    x, y = (mine(joint, each) for each in data())
    if not joint:
        WORLD.Barrier()
        for variable in model.weights:
            variable.assign(WORLD.bcast(variable.numpy()))
    for number in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x)[number % 2] - y) ** 2)
        optimizer.apply(tape.gradient(loss, [v.value for v in model.trainable_variables]), model.trainable_variables)
    return [*model.get_weights(), slots(optimizer)]


def metrics_by_their_states(joint: bool) -> list[Any]:
    """What is no mean over batches, with validation, and with shares of different sizes."""
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    names = ["mae", keras.metrics.RootMeanSquaredError(), keras.metrics.R2Score()]
    model.compile(wrap(joint, keras.optimizers.SGD(0.01)), loss="mse", metrics=names)
    x, y = data()
    own = [mine(joint, each) for each in (x, y)]
    cut = [0, len(x) // 4, *(len(x) - WORLD.size + 1 + each for each in range(1, WORLD.size))]
    share = slice(None) if joint else slice(cut[WORLD.rank], cut[WORLD.rank + 1])
    history = model.fit(
        *own, len(own[0]) // STEPS, epochs=2, shuffle=False, verbose=0, callbacks=start(joint),
        validation_data=(x[share], y[share]), validation_batch_size=3,
    ).history  # fmt: skip
    average = AverageMetrics(MPI.COMM_SELF if joint else WORLD)
    model.evaluate(x[share], y[share], 2, verbose=0, callbacks=[average])
    return [*map(np.array, history.values()), *map(np.array, average.evaluated.values())]


def dense(**options: Any) -> Any:
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(4, activation="tanh", **options),
            keras.layers.Dense(1, **options),
        ]
    )


def trained(joint: bool, model: Any, optimizer: Any, *callbacks: Any, batches: Any = None) -> list[Any]:
    """What is seen of two epochs."""
    model.compile(optimizer, loss="mse", metrics=["mae"])
    x, y = batches or (mine(joint, each) for each in data())
    history = model.fit(
        x, y, PER_RANK * (WORLD.size if joint else 1), epochs=2, shuffle=False, verbose=0,
        callbacks=start(joint, *callbacks),
    ).history  # fmt: skip
    return [*model.get_weights(), slots(optimizer), *history.values()]


def momentum(**options: Any) -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9, **options)


def clipped(joint: bool) -> list[Any]:
    ways: list[dict[str, float]] = [{"clipnorm": 0.1}, {"global_clipnorm": 0.1}, {"clipvalue": 0.05}]
    return [each for way in ways for each in trained(joint, dense(), wrap(joint, momentum(**way)))]


def scaled_with_overflow(joint: bool) -> list[Any]:
    """Half precision; in the second step of each epoch rank 0's samples overflow, and it is left out."""
    x, y = data()
    x.reshape(STEPS, WORLD.size, PER_RANK, FEATURES)[1, 0] = np.inf
    optimizer = keras.optimizers.LossScaleOptimizer(momentum(), initial_scale=2.0**10, dynamic_growth_steps=3)
    batches = mine(joint, x), mine(joint, y)
    return trained(joint, dense(dtype="mixed_float16"), wrap(joint, optimizer), batches=batches)[:-2]  # nan: metrics


def frozen_and_unfrozen(joint: bool) -> list[Any]:
    model = dense()
    seen = []
    for frozen in (False, True, False):
        model.layers[0].trainable = not frozen
        seen += trained(joint, model, wrap(joint, keras.optimizers.AdamW(0.05)))
    return seen


class Adversaries(keras.Model):  # type: ignore[misc]
    """A GAN with a step of its own; the first column of its samples is real, the others are noise."""

    def __init__(self, of_generator: Any, of_critic: Any) -> None:
        super().__init__()
        self.generator = keras.Sequential([keras.Input((FEATURES - 1,)), keras.layers.Dense(1)])
        self.critic = keras.Sequential([keras.Input((1,)), keras.layers.Dense(4, "softplus"), keras.layers.Dense(1)])
        self.of_generator, self.of_critic = of_generator, of_critic
        self.built = True

    def train_step(self, samples: Any) -> dict[str, Any]:
        real, noise = samples[:, :1], samples[:, 1:]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.critic(self.generator(noise)) - self.critic(real))
        self._step(self.of_critic, tape, loss, self.critic)
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(self.critic(self.generator(noise)))
        self._step(self.of_generator, tape, loss, self.generator)
        return {"loss": loss}

    def _step(self, optimizer: Any, tape: Any, loss: Any, part: Any) -> None:
        weights = part.trainable_variables
        optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)


def adversaries(joint: bool) -> list[Any]:
    optimizers = [wrap(joint, keras.optimizers.Adam(0.01)) for _ in range(2)]
    model = Adversaries(*optimizers)
    model.compile()
    batch = PER_RANK * (WORLD.size if joint else 1)
    callbacks = [] if joint else [BroadcastInitialState(WORLD)]
    model.fit(mine(joint, data()[0]), batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    return [*model.get_weights(), *map(slots, optimizers)]


def averaged_weights(joint: bool) -> list[Any]:
    """The moving averages of use_ema, which replace the weights in between."""
    options = {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2}
    return trained(joint, dense(), wrap(joint, momentum(**options)))


def schedule_by_a_metric(joint: bool) -> list[Any]:
    model, optimizer = dense(), wrap(joint, momentum())
    callbacks = [keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=0, min_delta=10, cooldown=0)]
    seen = trained(joint, model, optimizer, *callbacks)
    assert float(optimizer.learning_rate.numpy()) < 0.1
    return seen


def smaller_last_batch(joint: bool) -> list[Any]:
    """The last one of each epoch has half as many samples, on each rank."""
    cut = len(data()[0]) // STEPS // 2
    parts = [each.reshape(STEPS, WORLD.size, PER_RANK, -1) for each in data()]
    if joint:
        return trained(joint, dense(), wrap(joint, momentum()), batches=[
            np.concatenate([each[:-1].reshape(-1, each.shape[-1]), each[-1, :, : PER_RANK // 2].reshape(cut, -1)])
            for each in parts
        ])  # fmt: skip
    return trained(joint, dense(), wrap(joint, momentum()), batches=[
        each[:, WORLD.rank].reshape(STEPS * PER_RANK, -1)[: -(PER_RANK // 2)] for each in parts
    ])  # fmt: skip


class Late(keras.Model):  # type: ignore[misc]
    """Has no weights before its first step, which is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.last(self.first(inputs))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)
        return {"loss": loss}


def built_late(joint: bool, *, eager: bool) -> list[Any]:
    """Models that have no weights before ``fit``, with a frozen layer in one of them."""
    frozen = keras.layers.Dense(4, trainable=False)
    seen = []
    for model in (keras.Sequential([frozen, keras.layers.Dense(1)]), Late()):
        optimizer = wrap(joint, momentum())
        model.compile(optimizer, loss="mse", run_eagerly=eager)
        x, y = (mine(joint, each) for each in data())
        callbacks = [] if joint else [BroadcastInitialState(WORLD)]
        model.fit(x, y, len(x) // STEPS, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        seen += [*model.get_weights(), slots(optimizer)]
    return seen


def named(joint: bool) -> list[Any]:
    """An optimizer by its name."""
    optimizer = keras.optimizers.get("adam") if joint else DistributedOptimizer("adam", WORLD)
    return trained(joint, dense(), optimizer)


def narrow_weights(joint: bool) -> list[Any]:
    """Weights of bfloat16, which MPI does not have."""
    return [
        np.asarray(each, np.float32)
        for each in trained(joint, dense(dtype="bfloat16"), wrap(joint, keras.optimizers.SGD(0.05)))
        if not isinstance(each, dict)
    ]


def adapted(joint: bool) -> list[Any]:
    """A layer that is adapted to all samples on rank 0, of a model that has predicted before."""
    x, y = data()
    layer = keras.layers.Normalization()
    model = keras.Sequential([keras.Input((FEATURES,)), layer, keras.layers.Dense(1)])
    model.predict(x, verbose=0)
    if joint or WORLD.rank == 0:
        layer.adapt(3 * x + 1)
    model.compile(wrap(joint, momentum()), loss="mse")
    callbacks = [] if joint else [BroadcastInitialState(WORLD)]
    own, targets = mine(joint, x), mine(joint, y)
    model.fit(own, targets, len(own) // STEPS, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    return [*model.get_weights(), model.predict(x, verbose=0)]


class Fails(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the first training after two epochs."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise ArithmeticError


def restored(joint: bool) -> list[Any]:
    """A training that fails and continues with what rank 0 has saved."""
    model = dense()
    x, y = (mine(joint, each) for each in data())
    directory = Path(sys.argv[1]).with_name(f"backup-{joint}-{WORLD.rank}")
    seen = []
    for attempt in range(2):
        if attempt:
            keras.backend.clear_session()
            model = dense()
        backup = [keras.callbacks.BackupAndRestore(directory)] if joint or WORLD.rank == 0 else []
        callbacks = [*backup, *([] if joint else [BroadcastInitialState(WORLD)]), *([] if attempt else [Fails()])]
        model.compile(wrap(joint, momentum()), loss="mse")
        try:
            seen = model.fit(
                x, y, len(x) // STEPS, epochs=4, shuffle=False, verbose=0, callbacks=callbacks
            ).epoch  # fmt: skip
        except ArithmeticError:
            assert not attempt
    return [*model.get_weights(), slots(model.optimizer), np.array(seen)]


PROGRAMS: dict[str, Callable[[bool], list[Any]]] = {
    "adapted on rank 0": adapted,
    "built late": lambda joint: built_late(joint, eager=False),
    "built late, eagerly": lambda joint: built_late(joint, eager=True),
    "named optimizer": named,
    "restored on rank 0": restored,
    "weights in bfloat16": narrow_weights,
    "unused weights": lambda joint: unused_weights(joint, eager=False),
    "unused weights, eagerly": lambda joint: unused_weights(joint, eager=True),
    "other gradients in each step": other_gradients_in_each_step,
    "metrics by their states": metrics_by_their_states,
    "adversaries": adversaries,
    "averaged weights": averaged_weights,
    "clipped": clipped,
    "frozen and unfrozen": frozen_and_unfrozen,
    "scaled with overflow": scaled_with_overflow,
    "schedule by a metric": schedule_by_a_metric,
    "smaller last batch": smaller_last_batch,
}


def compare(act: Callable[[bool], list[Any]]) -> float:
    """The largest difference between one process and any rank."""
    seen = []
    for joint in (False, True):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0 if joint else WORLD.rank)
        seen.append(act(joint))
    return WORLD.allreduce(max(difference(*both) for both in zip(*seen, strict=True)), MPI.MAX)


def difference(own: Any, joint: Any) -> float:
    """The largest one."""
    if isinstance(own, dict):
        return max(difference(*both) for both in zip(own.values(), joint.values(), strict=True))
    return float(np.abs(np.asarray(own) - np.asarray(joint)).max(initial=0))


def statistics(*callbacks: Any) -> dict[str, Any]:
    """The moving mean of a first layer against that of all samples; whether all ranks have the same; what they say."""
    keras.backend.clear_session()
    layers = [keras.Input((FEATURES,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.01), WORLD), loss="mse")
    x, y = data()
    own = [mine(False, each) for each in (x, y)]
    model.fit(*own, PER_RANK, shuffle=False, verbose=0, callbacks=[BroadcastInitialState(WORLD), *callbacks])
    expected = np.zeros(FEATURES)
    for batch in x.reshape(STEPS, -1, FEATURES):
        expected = 0.99 * expected + 0.01 * batch.mean(0)
    digest = checksum([(each.path, each.numpy()) for each in model.weights])
    return {
        "difference": float(np.abs(model.layers[0].moving_mean.numpy() - expected).max()),
        "checksums": WORLD.allgather(digest),
        "losses": WORLD.allgather(model.evaluate(x, y, verbose=0)),
    }


class Largest(keras.metrics.Metric):  # type: ignore[misc]
    """No sum over samples."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(predicted)))

    def result(self) -> Any:
        return self.largest


def fit(*callbacks: Any, metrics: Any = (), layers: Any = (), samples: int = STEPS * PER_RANK) -> None:
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(1)])
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.01), WORLD), loss="mse", metrics=list(metrics))
    x, y = (mine(False, each) for each in data())
    callbacks = BroadcastInitialState(WORLD), *callbacks, AverageMetrics(WORLD)
    model.fit(x[:samples], y[:samples], PER_RANK, verbose=0, callbacks=list(callbacks))


def steps_of_two_kinds() -> None:
    keras.utils.set_random_seed(0)
    model = two_headed()
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), WORLD)
    x = np.ones((2, FEATURES), np.float32)
    for number in range(2):

        @tf.function
        def step(number: int = number) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x)[number])
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, [variable.value for variable in weights]), weights)

        step()


def unfrozen_with_the_same_optimizer() -> None:
    model, optimizer = dense(), DistributedOptimizer(momentum(), WORLD)
    for frozen in (True, False):
        model.layers[0].trainable = not frozen
        trained(False, model, optimizer)


def other_metrics() -> None:
    fit(metrics=["mae"] if WORLD.rank else [])


class Evaluates(keras.callbacks.Callback):  # type: ignore[misc]
    """Resets the metrics at the end of an epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.evaluate(*data(), verbose=0)


def begin(model: Any, *callbacks: Any, optimizer: Any = "sgd", x: Any = None) -> None:
    """Train on ranks that are not alike in something."""
    model.compile(DistributedOptimizer(optimizer, WORLD), loss="mse")
    own, y = (mine(False, each) for each in data())
    model.fit(own if x is None else x, y, PER_RANK, epochs=2, verbose=0, callbacks=list(callbacks))


def adapted_to_own_samples() -> None:
    layer = keras.layers.Normalization(name="own")
    layer.adapt(mine(False, data()[0]))
    begin(keras.Sequential([layer, keras.layers.Dense(1)]), BroadcastInitialState(WORLD))


def other_vocabularies() -> None:
    layer = keras.layers.IntegerLookup(vocabulary=[1, 2 + WORLD.rank], output_mode="multi_hot", name="words")
    x = np.ones((STEPS * PER_RANK, 2), np.int64)
    begin(keras.Sequential([layer, keras.layers.Dense(1)]), BroadcastInitialState(WORLD), x=x)


def other_models(**options: Any) -> None:
    layers = [keras.layers.Dense(name="first", **options), keras.layers.Dense(1)]
    begin(keras.Sequential([keras.Input((FEATURES,)), *layers]), BroadcastInitialState(WORLD))


def other_models_built_late() -> None:
    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.part = keras.layers.Dense(2 + WORLD.rank, name="part")

        def call(self, inputs: Any) -> Any:
            return self.part(inputs)

    begin(Own(), BroadcastInitialState(WORLD))


def without_broadcast() -> None:
    keras.utils.set_random_seed(WORLD.rank)
    begin(keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, name="only")]))


def compiled_by_xla() -> None:
    model, optimizer = dense(), DistributedOptimizer("sgd", WORLD)
    x, weights = np.ones((2, FEATURES), np.float32), model.trainable_variables

    @tf.function(jit_compile=True)
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        optimizer.apply(tape.gradient(loss, [each.value for each in weights]), weights)

    step()


def own_learning_rates() -> None:
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * (1 + WORLD.rank))
    begin(dense(), BroadcastInitialState(WORLD), rates)


def own_rates_in_a_step() -> None:
    def change(batch: int, logs: Any) -> None:
        begun.model.optimizer.learning_rate = 0.1 * (1 + WORLD.rank)

    begun = keras.callbacks.LambdaCallback(on_train_batch_begin=change)
    begin(dense(), BroadcastInitialState(WORLD), begun)


def saved_to_one_file() -> None:
    file = keras.callbacks.ModelCheckpoint(Path(sys.argv[1]).with_suffix(".keras"))
    begin(dense(), BroadcastInitialState(WORLD), file)


class Codebook(keras.layers.Layer):  # type: ignore[misc]
    """Moves weights that are not trained towards the batch."""

    def build(self, shape: Any) -> None:
        self.code = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False, name="code")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.code.assign(0.9 * self.code + 0.1 * keras.ops.mean(inputs, 0))
        return inputs - self.code


REFUSED: dict[str, Callable[[], None]] = {
    "adapted to own samples": adapted_to_own_samples,
    "begun with other weights": without_broadcast,
    "changed by each batch": lambda: fit(layers=[Codebook(name="book")]),
    "compiled by XLA": compiled_by_xla,
    "unequal learning rates": own_learning_rates,
    "unequal learning rates in a step": own_rates_in_a_step,
    "other functions": lambda: other_models(units=3, activation="tanh" if WORLD.rank else "relu"),
    "other models": lambda: other_models(units=3 + WORLD.rank),
    "other models, built late": other_models_built_late,
    "other optimizers": lambda: begin(
        dense(), BroadcastInitialState(WORLD), optimizer=keras.optimizers.SGD(0.1, momentum=0.5 * WORLD.rank)
    ),
    "other vocabularies": other_vocabularies,
    "saved to one file": saved_to_one_file,
    "a metric of one's own": lambda: fit(metrics=[Largest()]),
    "correlations": lambda: fit(metrics=[keras.metrics.PearsonCorrelation()]),
    "evaluated before": lambda: fit(Evaluates()),
    "logs of one's own": lambda: fit(
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(rank=WORLD.rank))
    ),
    "other metrics": other_metrics,
    "other numbers of steps": lambda: fit(samples=2 * PER_RANK if WORLD.rank else 3 * PER_RANK),
    "steps of two kinds": steps_of_two_kinds,
    "unfrozen with the same optimizer": unfrozen_with_the_same_optimizer,
    "synchronized normalization": lambda: fit(layers=[keras.layers.BatchNormalization(synchronized=True, name="norm")]),
}


if __name__ == "__main__":
    results: dict[str, Any] = {name: compare(PROGRAMS[name]) for name in sys.argv[2:] or PROGRAMS}
    if not sys.argv[2:]:
        results["statistics"] = {
            "average": statistics(AverageStatistics(WORLD)),
            "local": statistics(),
        }
        results["refused"] = {}
        for name, act in REFUSED.items():
            keras.backend.clear_session()  # names of layers begin again
            results["refused"][name] = WORLD.allgather(error_of(act))
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
