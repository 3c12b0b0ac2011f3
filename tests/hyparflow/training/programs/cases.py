"""Trainings of one small model on 4 ranks, and what came of them: ``cases.py FOUND.json DIRECTORY``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hyparflow
import keras
import numpy as np
import small
import tensorflow as tf
from hyparflow.training.sessions import plan_together
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
FOUND: dict[str, Any] = {}
X, Y = small.data()
#: Steps after which a training breaks off: at the end of the first epoch, and in the midst of the second.
BREAKS = (5, 8)


def main() -> None:
    found, directory = Path(sys.argv[1]), Path(sys.argv[2])
    everybody = hyparflow.Strategy(2, 2, costs="estimated", seed=7)
    interrupted(directory / "break")
    hybrid = goes_on(directory / "break", everybody, "2x2")
    several_kinds_of_data(everybody, hybrid, directory)
    evaluation(everybody, hybrid)
    refusals(everybody, hybrid, directory)
    refinement(everybody)
    beside_keras(directory)
    sequential()
    for own in WORLD.allgather(FOUND):
        for name, value in own.items():
            FOUND.setdefault(name, value)
    if WORLD.rank == 0:
        found.write_text(json.dumps(FOUND, default=lambda value: value.tolist()))


def built(strategy: Any, make: Callable[[], Any] = small.build, compiled: Callable[[Any], Any] = small.compiled) -> Any:
    with strategy.scope():
        model = make()
    return compiled(model)


def weights(root: Path) -> dict[str, Any]:
    """Those of the last checkpoint, as plain Keras has them."""
    model = small.compiled(small.build())
    progress = hyparflow.load_into(model, root)
    return {"step": progress.step, "values": [np.asarray(v).copy() for v in model.variables]}


def far(one: dict[str, Any], other: dict[str, Any]) -> float:
    pairs = zip(one["values"], other["values"], strict=True)
    return max(float(np.abs(np.asarray(a, "float64") - np.asarray(b, "float64")).max()) for a, b in pairs)


def training(strategy: Any, root: Path, **options: Any) -> tuple[Any, Any]:
    """10 steps, in two epochs of 5, with the data shuffled; the model and its history."""
    model = built(strategy)
    history = strategy.fit(model, X, Y, batch_size=small.BATCH, epochs=2, verbose=0, checkpoint=root, **options)
    return model, history.history


def interrupted(root: Path) -> None:
    """With 4 partitions without a break, and after each of the breaks with 1 and 2."""
    strategy = hyparflow.Strategy(4, 1, micro_batches=4, costs="estimated", seed=7)
    _, FOUND["straight"] = training(strategy, root / "4x1", checkpoint_every=1, keep=None)
    parts = WORLD.Split(0 if WORLD.rank < 1 else 1 if WORLD.rank < 3 else 2)
    if WORLD.rank < 3:
        partitions = 1 if WORLD.rank < 1 else 2
        goes_on(root, hyparflow.Strategy(partitions, 1, costs="estimated", seed=7, comm=parts), f"{partitions}x1")
    WORLD.Barrier()


def goes_on(root: Path, strategy: Any, name: str) -> Any:
    """From each break of the training with 4 partitions; the micro-batches are as small as they were then."""
    for step in BREAKS:
        own, saved = root / f"{name}-{step}", f"step-{step:010}"
        if strategy.comm.rank == 0:
            shutil.copytree(root / "4x1" / saved, own / saved)
        strategy.comm.Barrier()
        model, history = training(strategy, own, restart=True)
        if strategy.comm.rank == 0:
            straight, broken = weights(root / "4x1"), weights(own)
            FOUND[f"break-{name}-{step}"] = {
                "far": far(straight, broken),
                "steps": [straight["step"], broken["step"]],
                "history": history,
                "micro_batches": strategy.plan.micro_batches,
            }
    return model


class Batches(keras.utils.PyDataset):
    """The data batch by batch, read by two threads."""

    def __init__(self) -> None:
        super().__init__(workers=2)

    def __len__(self) -> int:
        return small.STEPS

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * small.BATCH, (index + 1) * small.BATCH)
        return {"v": X[1][rows], "u": X[0][rows]}, {"a": Y[0][rows], "b": Y[1][rows]}


def several_kinds_of_data(strategy: Any, model: Any, directory: Path) -> None:
    """The same epoch from the same weights, of data that come in other ways."""
    session = strategy._sessions.current
    begun = {name: np.asarray(value).copy() for name, value in session.variables.items()}
    named = {"u": X[0], "v": X[1]}
    dataset = tf.data.Dataset.from_tensor_slices((named, tuple(Y)))
    kinds: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "arrays": ((X, Y), {"batch_size": small.BATCH}),
        "dict": ((named, {"a": Y[0], "b": Y[1]}), {"batch_size": small.BATCH}),
        "PyDataset": ((Batches(),), {}),
        "tf.data": ((dataset.batch(small.BATCH),), {}),
        "generator": (((Batches()[index] for index in range(small.STEPS)),), {"steps_per_epoch": small.STEPS}),
    }
    for kind, (given, options) in kinds.items():
        for name, value in begun.items():
            session.variables[name].assign(value)
        trace = directory / "trace.json" if kind == "arrays" else None
        board = directory / "board" if kind == "arrays" else None
        history = strategy.fit(
            model, *given, shuffle=False, verbose=0, trace=trace, trace_steps=(1, 100), tensorboard=board, **options
        )
        FOUND.setdefault("data", {})[kind] = history.history
    FOUND["histories-equal"] = len({json.dumps(each) for each in WORLD.allgather(FOUND["data"])}) == 1


def evaluation(strategy: Any, model: Any) -> None:
    """Of a number of samples that divides by nothing, with weights; and the predictions."""
    x, y = small.data(71)
    weight = np.linspace(0.0, 2.0, 71)
    logs = strategy.evaluate(model, x, y, sample_weight=weight, return_dict=True, verbose=0)
    predictions = strategy.predict(model, x, verbose=0)
    path = Path(sys.argv[2]) / "whole.keras"
    strategy.save(model, path)
    if WORLD.rank == 0:
        plain = keras.models.load_model(path, custom_objects={"Largest": small.Largest})
        expected = plain.evaluate(x, y, sample_weight=weight, return_dict=True, verbose=0)
        wanted = plain.predict(x, verbose=0)
        FOUND["evaluate"] = {"found": logs, "expected": expected}
        FOUND["predict"] = max(float(np.abs(a - b).max()) for a, b in zip(predictions, wanted, strict=True))
        FOUND["clip"] = plain.optimizer.global_clipnorm


def refusals(strategy: Any, model: Any, directory: Path) -> None:
    """What all ranks raise together, before any training."""
    few = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    few.compile("sgd", "mse")
    plain = small.build()
    uneven = [value[: 40 + WORLD.rank] for value in X]
    whole = hyparflow.plan(small.compiled(small.build()), partitions=2, replicas=2, batch_size=16, costs="estimated")
    asked: dict[str, Callable[[], Any]] = {
        "not compiled": lambda: strategy.fit(plain, X, Y),
        "too few nodes": lambda: hyparflow.fit(few, X[0][:, :2], Y[1], partitions=4, costs="estimated"),
        "too few ranks": lambda: hyparflow.Strategy(4, 2),
        "parts of images": lambda: hyparflow.Strategy(plan=replace(whole, spatial=2)),
        "batch does not divide": lambda: hyparflow.fit(
            small.compiled(small.build()), X, Y, partitions=2, replicas=2, batch_size=15, costs="estimated"
        ),
        "another shape": lambda: strategy.fit(model, [X[0][:, :5], X[1]], Y, batch_size=small.BATCH),
        "lengths differ": lambda: strategy.fit(model, X, [Y[0][:8], Y[1]], batch_size=small.BATCH),
        "ranks differ": lambda: strategy.fit(model, uneven, [y[: len(uneven[0])] for y in Y], batch_size=small.BATCH),
        "callback": lambda: strategy.fit(
            model, X, Y, batch_size=small.BATCH, callbacks=[keras.callbacks.BackupAndRestore(str(directory))]
        ),
        "checkpoints in the way": lambda: strategy.fit(
            model, X, Y, batch_size=small.BATCH, checkpoint=directory / "break" / "4x1"
        ),
        "two kinds of weights": lambda: hyparflow.fit(
            classifying(chain()),
            X[0],
            Y[0],
            batch_size=small.BATCH,
            class_weight={0: 2.0},
            sample_weight=np.ones(small.COUNT),
        ),
        "class_weight for two outputs": lambda: strategy.fit(
            model, X, Y, batch_size=small.BATCH, class_weight={0: 2.0}
        ),
        "a stage that one rank cannot run": lambda: hyparflow.fit(
            refusing(), X[0], Y[0], partitions=1, replicas=4, batch_size=small.BATCH, costs="estimated", refinements=1
        ),
        "own data on a rank": lambda: strategy.fit(
            model, [x + WORLD.rank for x in X], Y, batch_size=small.BATCH, verbose=0
        ),
    }
    for name, ask in asked.items():
        try:
            ask()
        except Exception as error:
            raised = [type(error).__name__, str(error), getattr(error, "agreed_on", None)]
        else:
            raised = ["nothing", "", None]
        every = WORLD.allgather(raised)
        FOUND.setdefault("refusals", {})[name] = {"raised": every[0], "alike": every.count(every[0]) == len(every)}


class Refusing(keras.layers.Layer):
    """Passes on what it is given, until a rank cannot any more."""

    refuses = False

    def call(self, given: Any) -> Any:
        if self.refuses:
            raise hyparflow.RequestError("this rank has no such operation")
        return given


def refusing() -> Any:
    """A model that the last rank cannot run."""
    layer = Refusing()
    model = classifying(chain(layer))
    layer.refuses = WORLD.rank == 3
    return model


def refinement(strategy: Any) -> None:
    """A plan that all ranks refine, of a model whose variables are made where they are needed."""
    with strategy.scope():
        model = small.build()
    plan = plan_together(
        WORLD, small.compiled(model), partitions=2, replicas=2, batch_size=small.BATCH, micro_batches=2,
        costs="estimated", assignment=["add"], refinements=1,
    )  # fmt: skip
    made = [variable.path for variable in model.trainable_variables if variable._value is not None]
    FOUND["refinement"] = {
        "costs": plan.costs,
        "alike": len(set(WORLD.allgather(plan.to_json()))) == 1,
        "made": WORLD.allgather(sorted({path.partition("/")[0] for path in made})),
    }


def beside_keras(directory: Path) -> None:
    """With one micro-batch the numbers are those of Keras' own fit, with its own callbacks."""
    strategy = hyparflow.Strategy(4, 1, micro_batches=1, costs="estimated", seed=7)
    validation = (X, Y)
    model = built(strategy)
    logs = directory / f"log-{WORLD.rank}.csv"
    options: dict[str, Any] = {
        "batch_size": small.BATCH, "epochs": 6, "shuffle": False, "verbose": 0, "validation_data": validation,
        "validation_freq": 2,
    }  # fmt: skip
    history = strategy.fit(
        model, X, Y, callbacks=[*callbacks(), keras.callbacks.CSVLogger(logs), checkpoint(directory)], **options
    )
    every = WORLD.allgather((history.history, history.epoch, logs.exists()))
    if WORLD.rank == 0:
        keras.utils.set_random_seed(7)
        plain = small.compiled(small.build())
        expected = plain.fit(X, Y, callbacks=callbacks(), **options)
        FOUND["keras"] = {
            "found": history.history,
            "expected": expected.history,
            "epochs": [history.epoch, expected.epoch],
            "alike": all(each[:2] == every[0][:2] for each in every),
            "logs": [each[2] for each in every],
            "checkpoints": sorted(path.name for path in directory.glob("best-*.keras")),
        }


def sequential() -> None:
    """A Sequential model, 2 partitions x 2 replicas, without and with weights: what Keras makes of the same."""
    draw = np.random.default_rng(4)
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "class_weight": {"class_weight": {0: 2.0, 2: 0.25}},
        "sample_weight": {"sample_weight": draw.uniform(0.0, 2.0, small.COUNT)},
    }
    options: dict[str, Any] = {"batch_size": small.BATCH, "epochs": 3, "shuffle": False, "verbose": 0}
    for kind, weights in kinds.items():
        strategy = hyparflow.Strategy(2, 2, micro_batches=2, costs="estimated", seed=7)
        history = strategy.fit(built(strategy, chain, classifying), X[0], Y[0], **options, **weights)
        keras.utils.set_random_seed(7)
        expected = classifying(chain()).fit(X[0], Y[0], **options, **weights)
        FOUND.setdefault("sequential", {})[kind] = [history.history, expected.history]


def chain(*more: Any) -> Any:
    return keras.Sequential(
        [
            keras.Input((6,), name="u"),
            *more,
            keras.layers.Dense(8, "tanh", name="first"),
            keras.layers.Dense(8, "tanh", name="second"),
            keras.layers.Dense(3, "softmax", name="last"),
        ],
        name="chain",
    )


def classifying(model: Any) -> Any:
    model.compile(
        keras.optimizers.SGD(0.2),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
    )
    return model


def callbacks() -> list[Any]:
    """Those that decide something: all of it shows in the history."""
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.2),
        keras.callbacks.EarlyStopping(monitor="loss", patience=2, min_delta=0.5, restore_best_weights=True),
    ]


def checkpoint(directory: Path) -> Any:
    return keras.callbacks.ModelCheckpoint(
        str(directory / "best-{epoch}.keras"), monitor="loss", save_best_only=True, verbose=0
    )


if __name__ == "__main__":
    main()
