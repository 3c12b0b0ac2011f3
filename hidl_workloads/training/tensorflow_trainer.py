"""The training step with TensorFlow and Keras."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "tensorflow"  # Keras reads it when it is imported

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.checkpoint import Snapshot
from hidl_workloads.metrics import Metric
from hidl_workloads.parameters import Training
from hidl_workloads.tensorflow_device import choose_device, device_metrics
from hidl_workloads.tensorflow_threads import set_threads
from hidl_workloads.training import keras_checkpoint, tensorflow_strategies
from hidl_workloads.training.data_parallel.tensorflow_gradients import named_weights
from hidl_workloads.training.model import Batch, Model, rank_seed


class TensorFlowTrainer:
    """A model in Keras on TensorFlow, on this rank's GPU in a run on GPUs; the strategy averages the gradients."""

    fixed_ranks: str | None = None

    def __init__(self, communicator: MPI.Comm, model: Model, parameters: Training, batch: Batch) -> None:
        set_threads()
        self._communicator = communicator
        self._model = model
        self._place, self.device = choose_device(communicator)
        keras.utils.set_random_seed(rank_seed(parameters.seed, communicator.rank))
        keras.config.set_dtype_policy("mixed_bfloat16" if parameters.precision == "bfloat16" else "float32")
        self.versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
        optimizer = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[parameters.optimizer]
        with tf.device(self._place):
            self._network = model.keras_network()
            self._optimizer = plain = optimizer(learning_rate=parameters.learning_rate)
            plain.build(self._network.trainable_variables)
            # The step is compiled once, and only variables can get other batches later.
            kind = tf.Variable if parameters.batches or parameters.data else tf.constant
            self._inputs = kind(model.keras_inputs(batch.inputs))
            self._targets = kind(batch.targets)
            self._strategy = tensorflow_strategies.make(communicator, self._network, plain, self._loss, parameters)
        self.parameter_count = self._network.count_params()
        self.versions |= self._strategy.versions
        self.path, self.path_reason = self._strategy.path, self._strategy.path_reason

    def feed(self, batch: Batch) -> None:
        """Use this rank's batch in the steps that follow."""
        self._inputs.assign(self._model.keras_inputs(batch.inputs))
        self._targets.assign(batch.targets)

    def snapshot(self, document: Mapping[str, Any]) -> Snapshot:
        """Return the state between two steps."""
        return Snapshot(
            partial(keras_checkpoint.write_shared, self._network, self._optimizer),
            partial(keras_checkpoint.write_own, self._network),
            document,
        )

    def restore(self, shared: Path, own: Path) -> None:
        """Continue from the files of a checkpoint."""
        keras_checkpoint.restore(self._network, self._optimizer, shared, own)

    def step(self) -> float:
        """Train one step; returns the loss of this rank's batch."""
        with tf.device(self._place):
            return self._strategy.step()

    def metrics(self) -> list[Metric]:
        """Return the peak memory of the GPUs; collective."""
        return device_metrics(self._communicator, self._place)

    def weights(self) -> Iterable[tuple[str, NDArray[Any]]]:
        """Yield every trainable weight's name and value."""
        return named_weights(self._network)

    def close(self) -> None:
        """Release communicators and buffers; collective."""
        self._strategy.close()

    def _loss(self) -> tf.Tensor:
        inputs, targets = tf.convert_to_tensor(self._inputs), tf.convert_to_tensor(self._targets)
        logits = tf.cast(self._network(inputs, training=True), tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))
