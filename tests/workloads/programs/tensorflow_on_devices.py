"""Trains a small model on TensorFlow's first device, and on another as on a GPU; writes checksums and places as JSON.

::

    python -m hidl_workloads.world tensorflow_on_devices FILE

The other device is a second of the processor. In the steps, TensorFlow copies nothing from one to the other, but within
a graph. (Keras does, as it builds a model.)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from mpi4py import MPI

from hidl_workloads import tensorflow_device
from hidl_workloads.parameters import Training
from hidl_workloads.training import tensorflow_trainer  # sets the backend of Keras
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


def train(parameters: Training) -> tuple[str, list[str]]:
    """Train three steps; return the checksum of the weights, and where these and the batch are."""
    model = Small()
    trainer = tensorflow_trainer.TensorFlowTrainer(
        WORLD, model, parameters, rank_batch(model, parameters.seed, WORLD.rank)
    )
    tf.config.experimental.set_device_policy("explicit")
    for _ in range(3):
        trainer.step()
    tf.config.experimental.set_device_policy("silent")
    tensors = [trainer._inputs, *(variable.value for variable in trainer._network.weights)]
    found = checksum(trainer.weights()), sorted({tensor.device.rpartition("/device:")[2] for tensor in tensors})
    trainer.close()
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
    with mock.patch.object(tensorflow_trainer, "choose_device", return_value=(OTHER, "another")):
        for name, each in cases.items():
            found[name]["other"] = WORLD.allgather(train(each))
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
