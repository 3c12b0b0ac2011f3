"""What Keras' own calls on a model say before and after it was trained in 2 partitions: found.json, from rank 0."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hyparflow
import keras
import models
import numpy as np
from beside import COMM, HOW, X, Y, build, built, compiled, far, raised, started, strategy


def loaded(root: Path) -> dict[str, Any]:
    """Weights that are loaded before, in and after the scope."""
    found: dict[str, Any] = {}
    plain = started()
    start, file = plain.get_weights(), root / "start.weights.h5"
    if COMM.rank == 0:
        plain.save_weights(file)
    COMM.barrier()
    expected = [plain.evaluate(X, Y, verbose=0)]
    for name, load in {
        "load_weights": lambda model: model.load_weights(file),
        "set_weights": lambda model: model.set_weights(start),
    }.items():
        how, model = built(load)
        found[f"{name} in the scope"] = [far([how.evaluate(compiled(model), X, Y, verbose=0)], expected)]
        how, model = built()
        load(model)
        found[f"{name} in the scope"].append(far(model.get_weights(), start))
        found[f"{name} after the scope"] = [far([how.evaluate(compiled(model), X, Y, verbose=0)], expected)]
        how, model = built()
        before = model.predict(X, verbose=0)
        load(model)
        found[f"{name} after a prediction"] = [far([model.predict(X, verbose=0)], [plain.predict(X, verbose=0)])]
        found["a prediction before"] = far([before], [plain.predict(X, verbose=0)])
    model = build()
    model.set_weights(start)
    found["set_weights before the scope"] = [far([strategy().evaluate(compiled(model), X, Y, verbose=0)], expected)]
    scaled = keras.layers.Normalization(name="scale")
    with strategy().scope():
        scaled.adapt(X)
    found["adapt in the scope"] = [far([scaled.adapt_mean], [X.mean(axis=0)])]
    return found


def written(model: Any, path: Path) -> Any:
    """The model as it was saved."""
    model.save(path)
    COMM.barrier()
    return keras.models.load_model(path)


def read(model: Any, path: Path) -> Any:
    """The weights as they were saved."""
    model.save_weights(path)
    COMM.barrier()
    plain = build()
    plain.load_weights(path)
    return plain.get_weights()


def trained(root: Path) -> dict[str, Any]:
    """Keras' own calls after a fit in partitions."""
    found: dict[str, Any] = {}
    plain = started()
    start = plain.get_weights()
    how, model = built(lambda model: model.set_weights(start))
    how.fit(compiled(model), X, Y, **HOW)
    plain.fit(X, Y, **HOW)
    found["in parts"] = {
        "evaluate": far([model.evaluate(X, Y, verbose=0)], [plain.evaluate(X, Y, verbose=0)]),
        "predict": far([model.predict(X, verbose=0)], [plain.predict(X, verbose=0)]),
        "get_weights": far(model.get_weights(), plain.get_weights()),
        "save": far(written(model, root / "in parts.keras").get_weights(), plain.get_weights()),
        "save_weights": far(read(model, root / "parts.weights.h5"), plain.get_weights()),
    }
    found["reads"] = {
        "call": raised(lambda: model(X)),
        "a layer's get_weights": raised(lambda: [layer.get_weights() for layer in model.layers]),
        "a variable": raised(lambda: [np.asarray(each) for each in model.variables]),
    }
    found["different calls"] = raised(lambda: model.get_weights() if COMM.rank else model.evaluate(X, Y, verbose=0))
    hyparflow.gather(model)
    found["gathered"] = {
        "get_weights": far(model.get_weights(), plain.get_weights()),
        "evaluate": far([model.evaluate(X, Y, verbose=0)], [plain.evaluate(X, Y, verbose=0)]),
        "predict": far([model.predict(X, verbose=0)], [plain.predict(X, verbose=0)]),
    }
    how.fit(model, X, Y, **HOW)
    plain.fit(X, Y, **HOW)
    found["after another fit"] = raised(lambda: model(X))
    hyparflow.gather(model)
    found["gathered again"] = far([model.predict(X, verbose=0)], [plain.predict(X, verbose=0)])
    how.save(model, root / "saved.keras")
    COMM.barrier()
    found["saved"] = far(keras.models.load_model(root / "saved.keras").get_weights(), plain.get_weights())
    return found


def three_fits(model: Any, fit: Callable[..., Any]) -> list[float]:
    """The losses with a frozen layer, with another optimizer and loss, and without any learning."""
    model.get_layer("first").trainable = False
    losses = list(fit(compiled(model), X, Y, **HOW).history["loss"])
    model.get_layer("first").trainable = True
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mae")
    losses += fit(model, X, Y, **HOW).history["loss"]
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return [*losses, *fit(model, X, Y, **HOW).history["loss"]]


def plain_fit(model: Any, *data: Any, **how: Any) -> Any:
    """Keras' own."""
    return model.fit(*data, **how)


def recompiled(costs: str) -> dict[str, Any]:
    """Fit, compile, fit; then with another strategy."""
    plain = started()
    how = strategy(costs)
    with how.scope():
        model = build()
        model.set_weights(plain.get_weights())
    losses = far([three_fits(model, how.fit)], [three_fits(plain, plain_fit)])
    hyparflow.gather(model)
    found = {f"recompiled, {costs}": [losses, far(model.get_weights(), plain.get_weights())]}
    history = strategy().fit(compiled(model), X, Y, **HOW).history
    return found | {
        "another strategy": far([history["loss"]], [plain_fit(compiled(plain), X, Y, **HOW).history["loss"]])
    }


def with_gradients_missing() -> Any:
    """Of "stopped" and "side" no loss depends: the one by a stop_gradient, the other by an output without a loss."""
    x = keras.Input((6,), name="x")
    stopped = keras.layers.Dense(8, activation="tanh", name="stopped")(x)
    h = keras.layers.Dense(8, activation="tanh", name="second")(x)
    both = keras.layers.Concatenate(name="both")([keras.ops.stop_gradient(stopped), h])
    outputs = [keras.layers.Dense(1, name="last")(both), keras.layers.Dense(3, name="side")(both)]
    model = keras.Model(x, outputs, name="missing")
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, weight_decay=0.1, use_ema=True)
    model.compile(optimizer, loss=["mse", None])
    return model


def without_gradients() -> dict[str, Any]:
    """By the layer at which the second partition begins: it lacks gradients for some of its layers, or for all."""
    found = {}
    for begins in ("both", "side"):
        keras.utils.set_random_seed(77)
        plain = with_gradients_missing()
        how = hyparflow.Strategy(partitions=2, micro_batches=2, costs="estimated", assignment=[begins])
        with how.scope():
            model = with_gradients_missing()
        model.set_weights(plain.get_weights())
        if begins == "side":
            for each in (plain, model):
                each.optimizer.use_ema = False
        for each, fit in ((plain, plain_fit), (model, how.fit)):
            fit(each, X, [Y, np.zeros((32, 3))], **HOW)
        hyparflow.gather(model)
        found[begins] = [
            far(model.get_weights(), plain.get_weights()),
            far([model.optimizer.iterations], [plain.optimizer.iterations]),
        ]
    return {"without gradients": found}


def frozen_bfloat16(root: Path) -> dict[str, Any]:
    """Frozen weights of bfloat16, with checkpoints beside those of another program, and a restart from them."""

    def model() -> Any:
        keras.utils.set_random_seed(77)
        x = keras.Input((6,), name="x")
        frozen = keras.layers.Dense(8, activation="tanh", name="frozen", dtype="bfloat16")
        frozen.trainable = False
        h = keras.layers.Dense(8, activation="tanh", name="free", dtype="float32")(frozen(x))
        return compiled(keras.Model(x, keras.layers.Dense(1, name="last", dtype="float32")(h), name="half"))

    others = root / "step-1000" / "model.safetensors"
    if COMM.rank == 0:
        others.parent.mkdir()
        others.write_bytes(b"weights")
    COMM.barrier()
    plain = model()
    for epochs in (1, 2):
        how = strategy()
        with how.scope():
            parts = model()
        how.fit(parts, X, Y, **{**HOW, "epochs": epochs}, checkpoint=root, keep=1, restart=epochs > 1)
    plain.fit(X, Y, **HOW)
    hyparflow.gather(parts)
    weights = [[np.asarray(each, "float64") for each in made.get_weights()] for made in (parts, plain)]
    kept = others.exists() and others.read_bytes() == b"weights"
    return {"frozen bfloat16": far(*weights), "others": kept}


def largest_error(target: Any, prediction: Any) -> Any:
    """One number for a batch."""
    return keras.ops.max(keras.ops.abs(target - prediction))


def metrics_of_batches() -> dict[str, Any]:
    """Two replicas of two micro-batches each, and a last batch of 6 samples: metrics that compare samples."""

    def model(*more: Any) -> Any:
        keras.utils.set_random_seed(77)
        made = build()
        made.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae", largest_error, *more])
        return made

    def correlations() -> list[Any]:
        return [keras.metrics.PearsonCorrelation(axis=0), keras.metrics.ConcordanceCorrelation(axis=0)]

    found = {}
    for shape, target, more in (("(n, 1)", Y[:30], correlations), ("(n,)", Y[:30, 0], list)):
        how = hyparflow.Strategy(partitions=1, replicas=2, micro_batches=2, costs="estimated")
        plain = model(*more())
        with how.scope():
            apart = model(*more())
        expected = plain.evaluate(X[:30], target, batch_size=8, verbose=0, return_dict=True)
        got = how.evaluate(apart, X[:30], target, batch_size=8, verbose=0, return_dict=True)
        found[shape] = {name: far([got[name]], [value]) for name, value in expected.items()}
    return {"metrics of batches": found}


def masked() -> dict[str, Any]:
    """Models with masks in parts: what they predict, their losses, and their weights after two epochs."""
    words, targets = models.attending_data(16)
    found = {}
    for make in (models.attending, models.masked_inside):

        def model(make: Callable[[], Any] = make) -> Any:
            keras.utils.set_random_seed(77)
            made = make()
            made.compile(keras.optimizers.SGD(0.1), "mse")
            return made

        how, plain = strategy(), model()
        with how.scope():
            parts = model()
        found[make.__name__] = [far([parts.predict(words, verbose=0)], [plain.predict(words, verbose=0)])]
        losses = [made.fit(words, targets, **HOW).history["loss"] for made in (parts, plain)]
        evaluated = [[made.evaluate(words, targets, verbose=0)] for made in (parts, plain)]
        found[make.__name__] += [far(*losses), far(*evaluated), far(parts.get_weights(), plain.get_weights())]
    return {"masked": found}


def main(root: Path) -> None:
    """All cases."""
    found = (
        frozen_bfloat16(root)
        | masked()
        | metrics_of_batches()
        | without_gradients()
        | loaded(root)
        | trained(root)
        | recompiled("estimated")
        | recompiled("measured")
    )
    if COMM.rank == 0:
        (root / "found.json").write_text(json.dumps(found, indent=1))


main(Path(sys.argv[1]))
