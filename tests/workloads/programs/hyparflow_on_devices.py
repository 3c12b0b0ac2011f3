"""Trains a small ResNet with hyparflow on TensorFlow's first device, and on another as on a GPU; writes what it gave.

::

    python -m hidl_workloads.world hyparflow_on_devices FILE

The other device is a second of the processor, whose memory hyparflow takes for a GPU's. In the steps, TensorFlow copies
nothing from one to the other, but within a graph.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from mpi4py import MPI

from hidl_workloads import gpu_aware
from hidl_workloads.hyparflow import model as building  # sets the backend of Keras
from hidl_workloads.hyparflow import program, resnet, trainer
from hidl_workloads.refusal import Refused
from hidl_workloads.training.data_parallel import tensorflow_devices

import hyparflow  # isort: skip
import keras  # isort: skip
import tensorflow as tf  # isort: skip

WORLD = MPI.COMM_WORLD
OTHER = "/CPU:1"
CASES: dict[str, dict[str, Any]] = {
    "replicas": {"mode": "data", "micro_batches": 2},
    "deferred": {"mode": "data", "micro_batches": 2, "batch_norm": "deferred"},
    "partitions": {"mode": "model", "micro_batches": 4, "recompute": "always"},
    "gems": {"mode": "model", "micro_batches": 4, "schedule": "gems"},
    "interleaved": {"mode": "model", "micro_batches": 4, "schedule": "interleaved", "chunks": 2},
    "bfloat16": {"mode": "model", "micro_batches": 2, "precision": "bfloat16"},
}


def train(words: dict[str, Any]) -> dict[str, Any]:
    """Train three steps; return the checksum of the weights, the losses, and where variables and gradients are."""
    keras.backend.clear_session()  # the weights' names are those of a new process
    parameters = resnet.Parameters(depth=8, batch=8, costs="estimated", **words)
    trained = trainer.PartitionedTrainer(WORLD, parameters, lambda: resnet.make(parameters))
    tf.config.experimental.set_device_policy("explicit")
    losses = [trained.step().loss for _ in range(3)]
    tf.config.experimental.set_device_policy("silent")
    programs = trained._engine.programs.values()
    tensors = [variable.value for each in programs for variable in each.variables.values()]
    tensors += [accumulator.flat for each in programs for accumulator in each._parts.accumulators]
    found = {
        "checksum": program._checksum(WORLD, trained),
        "losses": losses,
        "places": sorted({tensor.device.rpartition("/device:")[2] for tensor in tensors}),
        "metrics": [metric.as_document() for metric in trained.metrics()],
    }
    trained.close()
    return found


def plan() -> dict[str, str]:
    """Plan on the other device; return where the costs come from, and what is said where they are to be measured."""
    parameters = resnet.Parameters(depth=8, batch=8)
    with tf.device(OTHER):
        model = building.build_model(parameters, lambda: resnet.make(parameters))
        request = {"partitions": 2, "batch_size": 8, "micro_batches": 2}
        try:
            hyparflow.plan(model, costs="measured", **request)
        except hyparflow.HyparflowError as error:
            return {"auto": hyparflow.plan(model, **request).costs, "measured": str(error)}
    return {}


def refusal(words: dict[str, Any]) -> str:
    """Return why it cannot be trained on the other device."""
    try:
        train(words)
    except Refused as error:
        return str(error)
    return ""


def main() -> None:
    (processor,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, 2 * [tf.config.LogicalDeviceConfiguration()])
    found: dict[str, Any] = {name: {"first": WORLD.allgather(train(words))} for name, words in CASES.items()}
    aware = gpu_aware.Answer(True, "a test says so")
    with (
        mock.patch.object(trainer, "choose_device", return_value=(OTHER, "another")),
        mock.patch.object(tensorflow_devices.TensorFlowGpu, "ask_mpi", return_value=aware),
        mock.patch.object(tensorflow_devices.TensorFlowGpu, "survives", return_value=None),
    ):
        for name, words in CASES.items():
            for buffers in ("staged", "auto"):
                found[name][buffers] = WORLD.allgather(train(words | {"gpu_buffers": buffers}))
        found["refusals"] = WORLD.allgather(refusal({"mode": "data", "gpu_buffers": "direct"}))
    if WORLD.rank == 0:
        found["planning"] = plan()
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
