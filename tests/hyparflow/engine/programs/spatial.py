"""Trains small random models on parts of the images; writes how far each ends from training in one process.

``spatial.py FILE CASES``: CASES is a JSON list of {"name", "seed"} for random layers, {"name", "seed", "combined"} for
parallel branches in random partitions and replicas, {"name", "own"} for layers that cannot be divided, or {"name",
"model", "spatial", "partitions", "schedule", "recompute", "batch_norm"} for a model of ``small_models``; FILE gets
name -> {"difference", "layers"}: the greatest difference of a variable or a step's loss.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import sequential
from branches import branches
from equality import difference, reference
from hyparflow.engine.engine import Batch, Engine
from hyparflow.engine.world import wait
from hyparflow.graph.calls import variables_of
from hyparflow.planning.planner import plan
from keras import layers
from mpi4py import MPI

STEPS, BATCH = 2, 2
OWN_SIZE = (9, 5)


def main(file: Path, cases: list[dict[str, Any]]) -> None:
    """Run all cases."""
    keras.config.set_floatx("float64")
    world = MPI.COMM_WORLD
    found: dict[str, Any] = {}
    for case in cases:
        if "combined" in case:
            found[case["name"]] = combined(world, case["seed"])
        elif "own" in case:
            random = np.random.default_rng(case["ranks"])
            found[case["name"]] = compare_parts(world, partial(own_layers, case["own"]), *OWN_SIZE, random)
        elif "seed" in case:
            found[case["name"]] = random_layers(world, case["seed"])
        else:
            found[case["name"]] = whole_model(world, case)
        if world.rank == 0:
            print(case["name"], found[case["name"]], flush=True)
    if world.rank == 0:
        file.write_text(json.dumps(found))


def whole_model(world: MPI.Comm, case: dict[str, Any]) -> dict[str, Any]:
    """Train a model of ``small_models`` for ten steps."""
    replicas = world.size // (case["spatial"] * case["partitions"])
    expected = reference(world, case["model"], replicas)
    options = {"chunks": 1, "predicts": False, **case, "replicas": replicas}
    return {"difference": max(difference(world, options, *expected).values()), "layers": case["model"]}


def random_layers(world: MPI.Comm, seed: int) -> dict[str, Any]:
    """Train a few layers of random kinds, sizes and paddings, on images of random height."""
    random = np.random.default_rng(seed)
    height, width = int(random.integers(world.size, 30)), int(random.integers(4, 12))
    kinds = describe(random, height, width)
    found = compare_parts(world, lambda: build(kinds, height, width, seed), height, width, random)
    return {**found, "layers": [height, width, *kinds]}


def compare_parts(
    world: MPI.Comm, make: Callable[[], keras.Model], height: int, width: int, random: np.random.Generator
) -> dict[str, Any]:
    """Train a model on parts of random images."""
    model = make()
    images = random.normal(size=(STEPS, BATCH, height, width, 2)) + 3.0
    labels = random.integers(0, 3, (STEPS, BATCH))
    expected = None
    if world.rank == 0:
        expected = sequential.train(
            make(),
            lambda step, _: ((images[step],), (labels[step],), (None,)),
            steps=STEPS,
            micro_batches=1,
            size=BATCH,
            replicas=1,
        )
    wait(world.Ibarrier())
    (variables,), losses = world.bcast(expected)
    planned = plan(model, partitions=1, batch_size=BATCH, micro_batches=1, spatial=world.size, recompute=False)
    engine = Engine(model, planned, world)
    worst = 0.0
    for step in range(STEPS):
        result = engine.train_step(Batch((images[step],), (labels[step],)))
        worst = max(worst, abs(world.allreduce(result.loss) - losses[step]))
    for name, variable in variables_of(model).items():
        worst = max(worst, float(np.max(np.abs(variable.numpy() - variables[name]), initial=0.0)))
    engine.close()
    divided = len(engine._division.nodes) if engine._division else 0
    return {"difference": world.allreduce(worst, MPI.MAX), "divided": divided}


def combined(world: MPI.Comm, seed: int) -> dict[str, Any]:
    """Train parallel branches on parts of the images in a random combination with partitions and replicas."""
    random = np.random.default_rng((seed, world.size))
    divisors = [each for each in range(1, world.size + 1) if world.size % each == 0]
    shapes = [(parts, each) for parts in divisors[1:] for each in divisors if world.size % (parts * each) == 0]
    spatial, partitions = shapes[int(random.integers(len(shapes)))]
    replicas = world.size // (spatial * partitions)
    schedule = str(random.choice(["gpipe", "1f1b", "interleaved", "gems"])) if partitions > 1 else "gpipe"
    micro_batches = 2 * partitions if schedule == "interleaved" else int(random.choice([2, 2 * partitions]))
    recompute = bool(random.random() < 0.5)
    drawn = {
        "spatial": spatial, "partitions": partitions, "replicas": replicas, "schedule": schedule,
        "chunks": 2 if schedule == "interleaved" else 1, "recompute": recompute,
    }  # fmt: skip
    model = branches(seed)
    shape = (replicas * micro_batches * BATCH, *model.inputs[0].shape[1:])
    images, labels = random.normal(size=(STEPS, *shape)) + 3.0, random.integers(0, 3, (STEPS, shape[0]))
    expected = None
    if world.rank == 0:
        expected = sequential.train(
            branches(seed),
            lambda step, _: ((images[step],), (labels[step],), (None,)),
            steps=STEPS,
            micro_batches=replicas * micro_batches,
            size=BATCH,
            replicas=replicas,
        )
    wait(world.Ibarrier())
    variables, losses = world.bcast(expected)
    planned = plan(model, batch_size=shape[0], micro_batches=micro_batches, costs="estimated", **drawn)
    engine = Engine(model, planned, world)
    replica = engine.world.seat.replica
    own = slice(replica * micro_batches * BATCH, (replica + 1) * micro_batches * BATCH)
    worst = 0.0
    for step in range(STEPS):
        result = engine.train_step(Batch((images[step][own],), (labels[step][own],)))
        worst = max(worst, abs(world.allreduce(result.loss) / replicas - losses[step]))
    for program in engine.programs.values():
        for name, variable in program.variables.items():
            far = np.max(np.abs(variable.numpy() - variables[replica][name]), initial=0.0)
            worst = max(worst, float(far))
    engine.close()
    return {"difference": world.allreduce(worst, MPI.MAX), "micro_batches": micro_batches, "layers": drawn}


def own_layers(kind: str) -> keras.Model:
    """Build a model with a layer whose result for a row depends on all rows, or on the number of the row."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    images = keras.Input((*OWN_SIZE, 2))
    x = layers.Conv2D(3, 1)(images)
    x = layers.Conv2D(3, 3, padding="same", activation=centred if kind == "convolution" else "relu")(x)
    of_rows = np.arange(OWN_SIZE[0], dtype="float64")[:, None, None]
    if kind == "activation":
        x = layers.Activation(centred)(x)
    elif kind == "softmax":
        x = layers.Activation(softmax_of_rows)(x)
    elif kind == "rescaling":
        x = layers.Rescaling(of_rows)(x)
    elif kind == "constant":
        x = x * of_rows
    elif kind == "layer":
        x = Add()([x, x])
    x = layers.GlobalAveragePooling2D()(layers.Activation("softmax")(layers.Conv2D(3, 3)(x)))
    model = keras.Model(images, layers.Dense(3)(x))
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def centred(x: Any) -> Any:
    """Subtract the mean of each image."""
    return x - keras.ops.mean(x, axis=(1, 2, 3), keepdims=True)


def softmax_of_rows(x: Any) -> Any:
    """Compute the softmax over the rows of each image."""
    return keras.activations.softmax(x, axis=1)


class Add(layers.Layer):
    """A layer of the user with the name of one of Keras."""

    def call(self, inputs: Any) -> Any:
        """Add two tensors and center their sum."""
        return centred(inputs[0] + inputs[1])


def describe(random: np.random.Generator, height: int, width: int) -> list[dict[str, Any]]:
    """Draw two to four layers that fit the images."""
    kinds = []
    for _ in range(int(random.integers(2, 5))):
        kind = str(random.choice(["conv", "depthwise", "separable", "max", "average"]))
        size = (int(random.integers(1, 6)), int(random.integers(1, 4)))
        dilation = int(random.integers(1, 4)) if kind == "conv" and random.random() < 0.3 else 1
        stride = int(random.integers(1, 4)) if dilation == 1 else 1
        padding = str(random.choice(["same", "valid"]))
        if padding == "valid":
            if (size[0] - 1) * dilation + 1 > height or (size[1] - 1) * dilation + 1 > width:
                continue
            height, width = height - (size[0] - 1) * dilation, width - (size[1] - 1) * dilation
        height, width = -(-height // stride), -(-width // stride)
        activation = random.choice(["relu", "linear"])
        kinds.append({
            "kind": kind, "size": size, "stride": stride, "dilation": dilation, "padding": padding,
            "activation": str(activation), "normalised": bool(random.random() < 0.6),
        })  # fmt: skip
    return kinds


def build(kinds: list[dict[str, Any]], height: int, width: int, seed: int) -> keras.Model:
    """Build the model; the first convolution shows the gradients of the others' inputs."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    images = keras.Input((height, width, 2))
    x = layers.Conv2D(3, 1)(images)
    for each in kinds:
        common = {"strides": each["stride"], "padding": each["padding"]}
        weights = {**common, "activation": each["activation"]}
        if each["kind"] == "conv":
            x = layers.Conv2D(3, each["size"], dilation_rate=each["dilation"], **weights)(x)
        elif each["kind"] == "depthwise":
            x = layers.DepthwiseConv2D(each["size"], **weights)(x)
        elif each["kind"] == "separable":
            x = layers.SeparableConv2D(3, each["size"], **weights)(x)
        else:
            pooling = layers.MaxPooling2D if each["kind"] == "max" else layers.AveragePooling2D
            x = pooling(each["size"], **common)(x)
        if each["normalised"]:
            x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.GlobalAveragePooling2D()(x) if seed % 2 else layers.Flatten()(x)
    model = keras.Model(images, layers.Dense(3)(x))
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
