"""Models whose layers are in parallel branches."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers


def branches(seed: int) -> keras.Model:
    """Return a model of convolutions, poolings and normalisations, each after one of the last three tensors."""
    keras.utils.clear_session()  # the names of layers count from the start
    keras.utils.set_random_seed(seed)
    random = np.random.default_rng(seed)
    images = keras.Input((int(random.integers(12, 40)), 6, 2))
    made = [layers.Conv2D(2, 1)(images)]
    for _ in range(5):
        x = made[int(random.integers(max(0, len(made) - 3), len(made)))]
        x = layers.Conv2D(2, (int(random.integers(1, 6)), 3), padding="same")(x)
        if random.random() < 0.5:
            x = layers.BatchNormalization()(x)
        if random.random() < 0.5:
            x = layers.MaxPooling2D((int(random.integers(1, 4)), 1), strides=1, padding="same")(x)
        made.append(x)
    x = layers.GlobalAveragePooling2D()(layers.Add()(made))
    model = keras.Model(images, layers.Dense(3)(x))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
