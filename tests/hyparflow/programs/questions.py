"""What tests ask of hyparflow where TensorFlow is; every function answers with something that JSON knows."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from typing import Any

import hyparflow
import keras
import models
import numpy as np
import tensorflow as tf
from hyparflow.__main__ import run
from hyparflow.backends import Place, ProgramOptions
from hyparflow.backends.tensorflow import build
from hyparflow.graph.calls import graph_of, variables_of
from hyparflow.planning.stages import stages_of
from in_process import InProcess
from sequential import Sequential


def graph(model: str) -> dict[str, Any]:
    """The graph of a named model."""
    keras.utils.set_random_seed(1)
    return asdict(graph_of(getattr(models, model)()))


def refused(model: str) -> None:
    """The graph of a model that has none."""
    graph_of(getattr(models, model)())


def planned(model: str, **request: Any) -> dict[str, Any]:
    """The plan of a named model, from costs measured here, and which of its variables that has ``changed``."""
    made = _fresh(model)
    before = {each.path: np.array(each) for each in made.variables}
    plan = json.loads(hyparflow.plan(made, costs="measured", **request).to_json())
    changed = [each.path for each in made.variables if not np.array_equal(before[each.path], each)]
    return {**plan, "changed": changed}


def copies(optimizer: str, scaled: bool = False, **options: Any) -> float:
    """What the plan for a model that is compiled so keeps of its weights, in multiples of them."""
    made = _fresh("tangled")
    chosen = keras.optimizers.deserialize({"class_name": optimizer, "config": options})
    made.compile(keras.optimizers.LossScaleOptimizer(chosen) if scaled else chosen)
    return float(hyparflow.plan(made, partitions=1, batch_size=8, costs="estimated").memory.copies)


def saved(model: str, path: str) -> None:
    """Save a named model, as Keras does."""
    getattr(models, model)().save(path)


def command(words: Sequence[str]) -> dict[str, Any]:
    """What the command `hyparflow` says to these words, and its exit code."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as complaints:
        status = run(words)
    return {"status": status, "stdout": output.getvalue(), "stderr": complaints.getvalue()}


def fingerprints(model: str, seeds: Sequence[int]) -> list[str]:
    """The fingerprints of a model that is made from several seeds."""
    found = []
    for seed in seeds:
        keras.backend.clear_session()
        keras.utils.set_random_seed(seed)
        found.append(graph_of(getattr(models, model)()).fingerprint)
    return found


def equality(model: str, stages: int, micro_batches: int, steps: int, **options: Any) -> dict[str, float]:
    """The largest differences to sequential training after some steps: of variables, and of losses.

    With several replicas moving statistics are left out: each replica's advance by its own micro-batches only.
    """
    replicas = options.get("replicas", 1)
    data = getattr(models, f"{model}_data")(2 * micro_batches * replicas)
    whole = _fresh(model)
    sequential = Sequential(whole, micro_batches * replicas)
    cut = _fresh(model)
    nodes = len(graph_of(cut).nodes)
    assignment = [node * stages // nodes for node in range(nodes)]
    pipeline = InProcess(cut, graph_of(cut), assignment, micro_batches, **options)
    for _ in range(steps):
        sequential.step(*data)
        pipeline.step(*data)
    return {
        "variables": _largest_difference(whole, cut, moving=replicas == 1),
        "losses": _loss_difference(sequential, pipeline),
    }


def random_graph(layers: Sequence[tuple[str, int, int]], assignment: Sequence[int], recompute: bool) -> float:
    """The largest difference of a variable after one step of a random graph on stages, or of a micro-batch's loss."""
    random = np.random.default_rng(7)
    inputs = [random.normal(size=(4, 3))]

    def make() -> Any:
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        model = models.random(layers)
        model.compile(keras.optimizers.SGD(0.5), ["mse"] * len(model.outputs))
        return model

    whole, cut = make(), make()
    targets = [random.normal(size=(4, 3)) for _ in whole.outputs]
    sequential, pipeline = Sequential(whole, 2), InProcess(cut, graph_of(cut), assignment, 2, recompute=recompute)
    sequential.step(inputs, targets)
    pipeline.step(inputs, targets)
    return max([_loss_difference(sequential, pipeline), *_differences(whole, cut)])  # some graphs have no variables


def mixed(policy: str) -> dict[str, Any]:
    """The largest difference of a variable after two steps in mixed precision, and the dtype that crosses."""
    random = np.random.default_rng(7)
    inputs, targets = [random.normal(size=(4, 3)).astype("float32")], [random.normal(size=(4, 3)).astype("float32")]

    def make() -> Any:
        keras.backend.clear_session()  # which forgets the policy too
        keras.config.set_dtype_policy(policy)
        keras.utils.set_random_seed(3)
        model = models.random([("dense", 0, 0), ("norm", 1, 0), ("dense", 2, 0)])
        optimizer = keras.optimizers.SGD(0.5)
        float16 = policy == "mixed_float16"
        model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if float16 else optimizer, "mse")
        return model

    whole, cut = make(), make()
    sequential, pipeline = Sequential(whole, 2), InProcess(cut, graph_of(cut), [0, 1, 1], 2)
    for _ in range(2):
        sequential.step(inputs, targets)
        pipeline.step(inputs, targets)
    crossing = pipeline.graph.tensors[next(iter(pipeline.stages[0].sends))].dtype
    return {"difference": _largest_difference(whole, cut), "crossing": crossing}


def normalised(policy: str) -> dict[str, Any]:
    """The largest difference of a variable after a step of a model with BatchNormalization of images, and its kernels.

    One of the layers is called three times. Kernels: the normalising operations in the forward program of the first
    stage.
    """
    random = np.random.default_rng(7)
    inputs, targets = [random.normal(2.0, 3.0, size=(4, 4, 4, 3))], [random.normal(size=(4, 4, 4, 3))]

    def make() -> Any:
        keras.backend.clear_session()  # which forgets the policy too
        keras.config.set_dtype_policy(policy)
        keras.utils.set_random_seed(3)
        image = x = keras.Input((4, 4, 3), dtype=policy)
        for scale, center in ((True, True), (False, True), (True, False)):
            x = keras.layers.BatchNormalization(momentum=0.5, scale=scale, center=center)(x)
            x = keras.layers.Activation("tanh")(x)
        shared = keras.layers.BatchNormalization(momentum=0.5)
        model = keras.Model(image, shared(shared(shared(x) * 3.0) + 2.0))
        model.compile(keras.optimizers.SGD(0.5), "mse")
        return model

    whole, cut = make(), make()
    pipeline = InProcess(cut, graph_of(cut), [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], 2)
    data = [[array.astype(policy) for array in arrays] for arrays in (inputs, targets)]
    Sequential(whole, 2).step(*data)
    pipeline.step(*data)
    program = next(iter(pipeline.programs[0]._compiled.values())).programs.forward
    kinds = {operation.type for operation in program.function.graph.get_operations()}
    return {
        "difference": _largest_difference(whole, cut),
        "kernels": sorted(kinds & {"FusedBatchNormV3", "SquaredDifference"}),
    }


def deferred(model: str, stage: int, stages: int) -> dict[str, Any]:
    """A model that was built without memory, one stage of which was then built."""
    eager = _fresh(model)
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    with hyparflow.deferred():
        lazy = getattr(models, model)()
    weights = {name for name, variable in variables_of(lazy).items() if "seed_generator" not in name}
    before = sum(variables_of(lazy)[name]._value is not None for name in weights)
    known = graph_of(lazy)
    nodes = len(known.nodes)
    cut = stages_of(known, [node * stages // nodes for node in range(nodes)])
    program = build(lazy, known, cut, stage)
    initialised = {name for name in weights if variables_of(lazy)[name]._value is not None}
    values = variables_of(eager)
    return {
        "before": before,
        "only its own": initialised == set(program.variables) & weights != weights,
        "difference": max(_difference(values[name], variable) for name, variable in program.variables.items()),
    }


def moving_statistics(mode: str, micro_batches: int, replicas: int) -> dict[str, Any]:
    """Moving mean and variance of one BatchNorm after a step on one stage, and the rows that it saw."""
    keras.utils.set_random_seed(1)
    rows = np.random.default_rng(8).normal(2.0, 3.0, size=(4 * micro_batches * replicas, 2))
    image = keras.Input((2,))
    model = keras.Model(image, keras.layers.BatchNormalization(momentum=0.75)(image))
    model.compile("sgd", "mse")
    program = build(model, graph_of(model), stages_of(graph_of(model), [0]), 0, ProgramOptions(batch_norm=mode))
    pipeline = InProcess(model, graph_of(model), [0], micro_batches, replicas=replicas)
    pipeline.programs = [program]
    pipeline.step([rows], [rows])
    return {
        "rows": rows.tolist(),
        "mean": model.layers[1].moving_mean.numpy().tolist(),
        "variance": model.layers[1].moving_variance.numpy().tolist(),
    }


def evaluated(model: str, stages: int) -> float:
    """The largest difference of outputs to ``model(x, training=False)``."""
    cut = _fresh(model)
    known = graph_of(cut)
    nodes = len(known.nodes)
    shares = stages_of(known, [node * stages // nodes for node in range(nodes)])
    inputs, *_ = getattr(models, f"{model}_data")(3)
    values = dict(zip(known.inputs, inputs, strict=True))
    for share in shares:
        outcome = build(cut, known, shares, share.index).forward(
            Place(0, 0, 0, 1, 1), {tensor: values[tensor] for tensor in share.receives}, training=False
        )
        values.update({tensor: np.array(value) for tensor, value in (*outcome.sends.items(), *outcome.outputs.items())})
    expected = keras.tree.flatten(cut(keras.tree.pack_sequence_as(cut.input, inputs), training=False))
    return max(
        float(np.max(np.abs(values[t] - tf.convert_to_tensor(e)))) for t, e in zip(known.outputs, expected, strict=True)
    )


def _fresh(model: str) -> Any:
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    made = getattr(models, model)()
    getattr(models, f"compile_{model}")(made)
    return made


def _difference(one: Any, other: Any) -> float:
    return float(np.max(np.abs(one.numpy().astype("float64") - other.numpy().astype("float64")), initial=0.0))


def _differences(one: Any, other: Any, moving: bool = True) -> list[float]:
    theirs = variables_of(other)
    compared = {name: v for name, v in variables_of(one).items() if moving or "moving_" not in name}
    return [_difference(variable, theirs[name]) for name, variable in compared.items()]


def _largest_difference(one: Any, other: Any, moving: bool = True) -> float:
    return max(_differences(one, other, moving))


def _loss_difference(sequential: Sequential, pipeline: InProcess) -> float:
    return float(np.max(np.abs(np.array(sequential.losses) - pipeline.losses)))
