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

from hidl_workloads import gpus
from hidl_workloads.metrics import Metric
from hidl_workloads.parameters import Training
from hidl_workloads.refusal import agree
from hidl_workloads.tensorflow_threads import set_threads
from hidl_workloads.training import tensorflow_strategies
from hidl_workloads.training.data_parallel.tensorflow_gradients import named_weights
from hidl_workloads.training.model import Batch, Model, rank_seed

_GPU = "/GPU:0"
_MIB = 2**20


class TensorFlowTrainer:
    """A model in Keras on TensorFlow, on this rank's GPU in a run on GPUs; the strategy averages the gradients."""

    def __init__(self, communicator: MPI.Comm, model: Model, parameters: Training, batch: Batch) -> None:
        set_threads()
        self._communicator = communicator
        self._place, self.device = choose_device(communicator)
        staged = self._place is not None and communicator.size > 1
        self.path = "staged" if staged else ""
        self.path_reason = "TensorFlow copies gradients to the host" if staged else ""
        keras.utils.set_random_seed(rank_seed(parameters.seed, communicator.rank))
        keras.config.set_dtype_policy("mixed_bfloat16" if parameters.precision == "bfloat16" else "float32")
        self.versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
        optimizer = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[parameters.optimizer]
        with tf.device(self._place):
            self._network = model.keras_network()
            plain = optimizer(learning_rate=parameters.learning_rate)
            plain.build(self._network.trainable_variables)
            self._inputs = tf.constant(model.keras_inputs(batch.inputs))
            self._targets = tf.constant(batch.targets)
            self._strategy = tensorflow_strategies.make(communicator, self._network, plain, self._loss, parameters)
        self.parameter_count = self._network.count_params()
        self.versions |= self._strategy.versions

    def step(self) -> float:
        """Train one step; returns the loss of this rank's batch."""
        with tf.device(self._place):
            return self._strategy.step()

    def metrics(self) -> list[Metric]:
        """Return the peak memory of the GPUs; collective."""
        if self._place != _GPU:
            return []
        peaks = self._communicator.allgather(tf.config.experimental.get_memory_info("GPU:0")["peak"] / _MIB)
        return [Metric("gpu_memory", max(peaks), "MiB", peaks)]

    def weights(self) -> Iterable[tuple[str, NDArray[Any]]]:
        """Yield every trainable weight's name and value."""
        return named_weights(self._network)

    def close(self) -> None:
        """Release communicators and buffers; collective."""
        self._strategy.close()

    def _loss(self) -> tf.Tensor:
        logits = tf.cast(self._network(self._inputs, training=True), tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(self._targets, logits))


def choose_device(communicator: MPI.Comm) -> tuple[str | None, str]:
    """Return the place of TensorFlow's operations (None: its own choice) and its name; collective.

    In a run on GPUs it is the first that this rank sees, which is its own, and TensorFlow sees no other. Raises
    ``Refused`` on all ranks where one of them has no GPU that TensorFlow can use.
    """
    if not gpus.is_wanted():
        return None, "CPU"
    found = tf.config.list_physical_devices("GPU")
    fault = gpus.untaken()
    if fault is None and not found:
        why = "its driver serves none" if tf.test.is_built_with_gpu_support() else "built for processors only"
        fault = f"TensorFlow {tf.__version__} has no usable GPU on this rank: {why}"
    agree(communicator, fault)
    tf.config.set_visible_devices(found[0], "GPU")
    tf.config.experimental.set_memory_growth(found[0], True)  # else it takes all memory: ranks may share a GPU
    name: str = tf.config.experimental.get_device_details(found[0]).get("device_name", "GPU")
    return _GPU, name
