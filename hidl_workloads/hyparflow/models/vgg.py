"""VGG for images of 32 x 32, or larger ones.

Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition (2014), table 1, columns A,
B, D and E. Five poolings leave one position of a 32 x 32 image, so its fully connected layers are 512 wide, not 4096.
The positions that they leave of a larger image are averaged.
"""

from __future__ import annotations

from typing import Any

from hidl_workloads.hyparflow.models import CLASSES, SIZE

#: Convolutions of 3x3 before each pooling, by the number of layers with weights.
_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_FILTERS = (64, 128, 256, 512, 512)
_WIDTH = 512


def vgg(depth: int, image_size: int = SIZE, weight_decay: float = 5e-4) -> Any:
    """Return the Keras model ``vgg{depth}``; raise ``ValueError`` for another depth."""
    import keras
    from keras import layers

    if depth not in _CONVOLUTIONS:
        raise ValueError(f"invalid depth {depth}: must be one of {', '.join(map(str, _CONVOLUTIONS))}")
    regularizer = keras.regularizers.L2(weight_decay) if weight_decay else None
    usual = {"activation": "relu", "kernel_initializer": "he_normal", "kernel_regularizer": regularizer}
    images = x = keras.Input((image_size, image_size, 3), name="images")
    for number, filters in zip(_CONVOLUTIONS[depth], _FILTERS, strict=True):
        for _ in range(number):
            x = layers.Conv2D(filters, 3, padding="same", **usual)(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Flatten()(x) if x.shape[1] == 1 else layers.GlobalAveragePooling2D()(x)
    for _ in range(2):
        x = layers.Dropout(0.5)(layers.Dense(_WIDTH, **usual)(x))
    logits = layers.Dense(CLASSES, name="logits")(x)
    return keras.Model(images, logits, name=f"vgg{depth}")
