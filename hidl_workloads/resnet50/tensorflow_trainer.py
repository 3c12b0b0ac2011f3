"""The training step with TensorFlow and Keras."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "tensorflow"  # Keras reads it when it is imported

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.data_parallel.tensorflow_gradients import named_weights
from hidl_workloads.resnet50 import tensorflow_backends
from hidl_workloads.resnet50.parameters import Parameters
from hidl_workloads.resnet50.trainer import CLASSES, Batch, rank_seed
from hidl_workloads.tensorflow_threads import set_threads


class TensorFlowTrainer:
    """Keras's ResNet-50; the backend averages the gradients and updates the weights."""

    def __init__(self, communicator: MPI.Comm, parameters: Parameters, batch: Batch) -> None:
        set_threads()
        keras.utils.set_random_seed(rank_seed(parameters.seed, communicator.rank))
        keras.config.set_dtype_policy("mixed_bfloat16" if parameters.precision == "bfloat16" else "float32")
        self.versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
        side = parameters.image_size
        self._model = keras.applications.ResNet50(
            weights=None, classes=CLASSES, classifier_activation=None, input_shape=(side, side, 3)
        )
        self.parameter_count = self._model.count_params()
        optimizer = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[parameters.optimizer]
        plain = optimizer(learning_rate=parameters.learning_rate)
        plain.build(self._model.trainable_variables)
        self._images = tf.constant(batch.images.transpose(0, 2, 3, 1))
        self._labels = tf.constant(batch.labels)
        self._backend = tensorflow_backends.make(communicator, self._model, plain, self._loss, parameters)
        self.versions |= self._backend.versions

    def step(self) -> float:
        """Train one step; returns the loss of this rank's batch."""
        return self._backend.step()

    def weights(self) -> Iterable[tuple[str, NDArray[Any]]]:
        """Yield every trainable weight's name and value."""
        return named_weights(self._model)

    def close(self) -> None:
        """Give back what the backend took; every rank calls this."""
        self._backend.close()

    def _loss(self) -> tf.Tensor:
        logits = tf.cast(self._model(self._images, training=True), tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(self._labels, logits))
