"""Trains a small model on TensorFlow's first device, and on another as on a GPU; writes checksums and places as JSON.

::

    python -m hidl_workloads.world tensorflow_on_devices FILE

The other device is a second of the processor. In the steps, TensorFlow copies nothing from one to the other, but within
a graph. (Keras does, as it builds a model.)
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from mpi4py import MPI

from hidl_workloads import gpu_aware, tensorflow_device
from hidl_workloads.parameters import Training
from hidl_workloads.training import tensorflow_trainer  # sets the backend of Keras
from hidl_workloads.training.data_parallel import gpu_proof, tensorflow_devices, tensorflow_gradients
from hidl_workloads.training.data_parallel.weights import checksum
from hidl_workloads.training.model import Batch, Model, rank_batch

import keras  # isort: skip
import tensorflow as tf  # isort: skip

WORLD = MPI.COMM_WORLD
OTHER = "/CPU:1"


class Small(Model):
    """Convolutions, and a layer that normalizes."""

    title, items, label = "small", "images", "Img"

    def items_per_step(self) -> int:
        return 4

    def describe_batch(self) -> str:
        return "4 per rank"

    def make_batch(self, random: np.random.Generator) -> Batch:
        return Batch(random.standard_normal((4, 6, 6, 3), np.float32), random.integers(5, size=4))

    def keras_network(self) -> Any:
        keras.backend.clear_session()
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((6, 6, 3)),
                layers.Conv2D(8, 3, activation="relu"),
                layers.BatchNormalization(),
                layers.GlobalAveragePooling2D(),
                layers.Dense(5),
            ]
        )


def train(parameters: Training) -> tuple[str, list[str], str]:
    """Train three steps; return the checksum of the weights, where these and the batch are, and the gradients' path."""
    model = Small()
    trainer = tensorflow_trainer.TensorFlowTrainer(
        WORLD, model, parameters, rank_batch(model, parameters.seed, WORLD.rank)
    )
    tf.config.experimental.set_device_policy("explicit")
    for _ in range(3):
        trainer.step()
    tf.config.experimental.set_device_policy("silent")
    tensors = [trainer._inputs, *(variable.value for variable in trainer._network.weights)]
    places = sorted({tensor.device.rpartition("/device:")[2] for tensor in tensors})
    found = checksum(trainer.weights()), places, trainer.path
    trainer.close()
    return found


def averages_of_constants(passes: int) -> list[float]:
    """Average a constant of the traced function, after so many passes with it, on the other device."""
    with tf.device(OTHER):
        variable = keras.Variable(np.zeros(300, np.float32))
    averager = tensorflow_gradients.GradientAverager(WORLD, [variable], accumulate=passes)

    @tf.function
    def averages() -> Any:
        with tf.device(OTHER):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable.value) * (1.0 + WORLD.rank)
            gradient = tape.gradient(loss, variable.value)
            deposited = averager.deposit([gradient])
            for _ in range(passes - 1):
                with tf.control_dependencies([deposited]):
                    deposited = averager.deposit([gradient])
            return averager.collect(deposited)

    found = [float(averages()[0][0]) for _ in range(3)]
    averager.close()
    return found


def main() -> None:
    (processor,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, 2 * [tf.config.LogicalDeviceConfiguration()])
    cases = {
        "sgd": Training(framework="tensorflow"),
        "adam": Training(framework="tensorflow", optimizer="adam", bucket_mib=0.001),
        "bfloat16": Training(framework="tensorflow", compression="bfloat16"),
    }
    with mock.patch.object(tf.config, "set_visible_devices") as shown:
        tensorflow_device.choose_device(WORLD)
    found: dict[str, Any] = {"shown": shown.call_args.args}
    found |= {name: {"first": WORLD.allgather(train(each))} for name, each in cases.items()}
    aware = gpu_aware.Answer(True, "a test says so")
    with (
        mock.patch.object(tensorflow_trainer, "choose_device", return_value=(OTHER, "another")),
        mock.patch.object(tensorflow_devices.TensorFlowGpu, "ask_mpi", return_value=aware),
        mock.patch.object(tensorflow_devices.TensorFlowGpu, "survives", return_value=None),
    ):
        for name, each in cases.items():
            for buffers in ("staged", "auto"):
                found[name][buffers] = WORLD.allgather(train(replace(each, gpu_buffers=buffers)))
        found["alone"] = gpu_proof.sum_alone(MPI.COMM_SELF, tensorflow_devices.TensorFlowGpu(OTHER))
        found["constants"] = [averages_of_constants(passes) for passes in (1, 2)]
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
