"""Programs in the style of Keras' guides, on ranks and in one process on the joint batches, written as JSON to argv[1]:
for each the largest difference of anything that it sees.

Dropout and random augmentation, which draw other numbers on each rank, are left out of them.
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
from keras import layers
from keras_oracle import PER_RANK, STEPS, WORLD, compare, slots, start, wrap

from hidl_workloads.training.data_parallel.tensorflow_gradients import broadcast

PIXELS, CLASSES = 12, 4


def images(joint: bool, *, steps: int = STEPS) -> tuple[Any, Any]:
    """Return digits of CLASSES kinds: all of them, or the share of this rank of each batch."""
    random = np.random.default_rng(7)
    y = random.integers(CLASSES, size=steps * WORLD.size * PER_RANK)
    x = (random.random((len(y), PIXELS)) + np.eye(PIXELS)[y]).astype("float32")
    return share(joint, x), share(joint, y)


def share(joint: bool, samples: Any) -> Any:
    if joint:
        return samples
    parts = samples.reshape(-1, WORLD.size, PER_RANK, *samples.shape[1:])
    return parts[:, WORLD.rank].reshape(-1, *samples.shape[1:])


def batch_size(joint: bool) -> int:
    return PER_RANK * (WORLD.size if joint else 1)


def digits() -> Any:
    inputs = keras.Input((PIXELS,), name="digits")
    x = layers.Dense(16, activation="relu", name="dense_1")(inputs)
    x = layers.Dense(16, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3), name="dense_2")(x)
    return keras.Model(inputs, layers.Dense(CLASSES, name="predictions")(x))


def built_in_methods(joint: bool) -> list[Any]:
    """Training & evaluation with the built-in methods."""
    model, optimizer = digits(), wrap(joint, keras.optimizers.RMSprop(1e-2))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])
    x, y = images(joint)
    dataset = tf.data.Dataset.from_tensor_slices((x, y, np.where(y == 1, 2.0, 1.0).astype("float32")))
    validation = tf.data.Dataset.from_tensor_slices(images(True, steps=1)).batch(8)
    file = Path(sys.argv[1]).with_name(f"built-in-{WORLD.rank if joint else 'ranks'}.keras")
    best = keras.callbacks.ModelCheckpoint(file, monitor="val_loss", save_best_only=True)
    stop = keras.callbacks.EarlyStopping("val_loss", min_delta=1e-2, patience=2)
    callbacks = start(joint, stop, *([best] if joint or WORLD.rank == 0 else []))
    dataset = dataset.batch(batch_size(joint))
    history = model.fit(dataset, epochs=4, verbose=0, validation_data=validation, callbacks=callbacks).history
    WORLD.Barrier()
    return [*model.get_weights(), *keras.models.load_model(file).get_weights(), *map(np.array, history.values())]


def training_loop(joint: bool) -> list[Any]:
    """Writing a training loop from scratch in TensorFlow."""
    model, optimizer = digits(), wrap(joint, keras.optimizers.Adam(1e-2))
    loss_of, accuracy = keras.losses.SparseCategoricalCrossentropy(from_logits=True), keras.metrics.Mean()
    if not joint:
        broadcast(WORLD, model)

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_of(y, logits) + sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply(gradients, model.trainable_weights)
        accuracy.update_state(keras.metrics.sparse_categorical_accuracy(y, logits))
        return loss

    dataset = tf.data.Dataset.from_tensor_slices(images(joint)).batch(batch_size(joint))
    losses = []
    for _ in range(2):
        losses += [float(train_step(x, y)) for x, y in dataset]
    mean = np.array([*losses, float(accuracy.result())])
    return [*model.get_weights(), slots(optimizer), mean if joint else WORLD.allreduce(mean) / WORLD.size]


class CustomModel(keras.Model):  # type: ignore[misc]
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


def custom_train_step(joint: bool) -> list[Any]:
    """Customizing what happens in fit() with TensorFlow."""
    inputs = keras.Input((PIXELS,))
    model = CustomModel(inputs, layers.Dense(1)(layers.Dense(8, "tanh")(inputs)))
    model.compile(wrap(joint, keras.optimizers.Adam(1e-2)), "mse", metrics=["mae"])
    x, y = images(joint)
    options = {"batch_size": batch_size(joint), "epochs": 3, "shuffle": False, "verbose": 0}
    history = model.fit(x, y.astype("float32"), callbacks=start(joint), **options).history
    return [*model.get_weights(), *map(np.array, history.values())]


def transfer_learning(joint: bool) -> list[Any]:
    """Transfer learning & fine-tuning."""
    pixels = keras.Input((PIXELS, 1))
    base = keras.Model(pixels, layers.ReLU()(layers.BatchNormalization()(layers.Conv1D(4, 3)(pixels))))
    base.trainable = False
    inputs = keras.Input((PIXELS,))
    x = layers.Rescaling(1 / 127.5, offset=-1)(layers.Reshape((PIXELS, 1))(inputs))
    x = layers.GlobalAveragePooling1D()(base(x, training=False))
    model = keras.Model(inputs, layers.Dense(1)(x))
    samples, y = images(joint)
    seen: list[Any] = []
    for rate in (1e-2, 1e-3):
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(wrap(joint, keras.optimizers.Adam(rate)), loss, metrics=[keras.metrics.BinaryAccuracy()])
        options = {"batch_size": batch_size(joint), "epochs": 2, "shuffle": False, "verbose": 0}
        history = model.fit(255 * samples, (y > 1).astype("float32"), callbacks=start(joint), **options).history
        seen += [*model.get_weights(), *map(np.array, history.values())]
        base.trainable = True
        base.layers[2].trainable = False  # as in one process, normalization by the moving statistics
    return seen


def mixed_precision(joint: bool) -> list[Any]:
    """Mixed precision, with the loss scaling that Keras adds by itself in one process."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        inputs = keras.Input((PIXELS,), name="digits")
        x = layers.Dense(32, activation="relu")(layers.Dense(32, activation="relu")(inputs))
        model = keras.Model(inputs, layers.Activation("softmax", dtype="float32")(layers.Dense(CLASSES)(x)))
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop(1e-3))
        model.compile(wrap(joint, scaled), "sparse_categorical_crossentropy", metrics=["accuracy"])
        x, y = images(joint)
        options = {"batch_size": batch_size(joint), "epochs": 2, "shuffle": False, "verbose": 0}
        model.fit(x, y, callbacks=start(joint), **options)
        return list(model.get_weights())
    finally:
        keras.config.set_dtype_policy("float32")


def preprocessing_layers(joint: bool) -> list[Any]:
    """Working with preprocessing layers: some in the data's pipeline, some in the model."""
    all_samples, labels = images(True)
    words = np.array([f"the {'red' if label % 2 else 'blue'} cat {label}" for label in labels])
    text = layers.TextVectorization(output_mode="multi_hot", max_tokens=12)
    text.adapt(words)
    lookup = layers.IntegerLookup(output_mode="one_hot")
    lookup.adapt(labels)
    normalization, bins = layers.Normalization(), layers.Discretization(num_bins=4, output_mode="multi_hot")
    normalization.adapt(all_samples)
    bins.adapt(all_samples)
    inputs = keras.Input((PIXELS,))
    told = keras.Input((text.vocabulary_size(),))
    kind = keras.Input((lookup.vocabulary_size(),))
    x = layers.Concatenate()([normalization(inputs), bins(inputs), told, kind])
    model = keras.Model([inputs, told, kind], layers.Dense(1)(x))
    model.compile(wrap(joint, keras.optimizers.SGD(1e-2)), "mse")
    x, y = images(joint)
    dataset = tf.data.Dataset.from_tensor_slices((x, share(joint, words), y)).batch(batch_size(joint))
    dataset = dataset.map(lambda x, words, y: ((x, text(words), lookup(y)), y)).prefetch(2)
    history = model.fit(dataset, epochs=2, verbose=0, callbacks=start(joint)).history
    return [*model.get_weights(), *map(np.array, history.values())]


GUIDES: dict[str, Callable[[bool], list[Any]]] = {
    "built-in methods": built_in_methods,
    "custom train_step": custom_train_step,
    "mixed precision": mixed_precision,
    "preprocessing layers": preprocessing_layers,
    "training loop": training_loop,
    "transfer learning": transfer_learning,
}

if __name__ == "__main__":
    results = {name: compare(act) for name, act in GUIDES.items()}
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
