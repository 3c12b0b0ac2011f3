"""ResNet-50 with TensorFlow and Keras on the CPU: ``keras.applications.ResNet50``, 25,636,712 parameters."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from hidl_workloads.data_parallel import tensorflow as data_parallel
from hidl_workloads.resnet50.settings import Settings


class Trainer:
    """A model, its optimizer and one rank's images; ``step`` trains once."""

    def __init__(self, settings: Settings, world: Any) -> None:
        threads = int(os.environ.get("TF_NUM_INTRAOP_THREADS") or os.environ.get("OMP_NUM_THREADS") or 0)
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(int(os.environ.get("TF_NUM_INTEROP_THREADS") or 1))
        keras.utils.set_random_seed(settings.seed)
        keras.mixed_precision.set_global_policy("mixed_bfloat16" if settings.precision == "bfloat16" else "float32")
        shape = (settings.image_size, settings.image_size, 3)
        self.model = keras.applications.ResNet50(
            weights=None, input_shape=shape, classes=1000, classifier_activation=None
        )
        data_parallel.broadcast(self.model, world)
        kind = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[settings.optimizer]
        self._optimizer = kind(settings.learning_rate)
        self._optimizer.build(self.model.trainable_variables)
        self._average = data_parallel.GradientAverage(world, bucket_bytes=settings.bucket_bytes)
        own = tf.random.Generator.from_seed(settings.seed + 1 + world.rank)
        self._images = own.normal((settings.batch, *shape))
        self._labels = own.uniform((settings.batch,), maxval=1000, dtype=tf.int32)
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def _gradients(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = self._loss(self._labels, self.model(self._images, training=True))
        return loss, tape.gradient(loss, self.model.trainable_variables)

    @tf.function
    def _apply(self, gradients: list[tf.Tensor]) -> None:
        self._optimizer.apply(gradients, self.model.trainable_variables)

    def step(self) -> float:
        """One step on this rank's images; return the loss before it."""
        loss, gradients = self._gradients()
        self._apply(self._average(gradients))
        return float(loss)

    def checksum(self) -> str:
        """The checksum of the weights."""
        return data_parallel.checksum(self.model)

    @staticmethod
    def versions() -> dict[str, str]:
        """What computed."""
        return {"tensorflow": tf.__version__, "keras": keras.__version__}
