"""The device that TensorFlow computes on: in a run on GPUs the rank's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hidl_workloads import gpus
from hidl_workloads.metrics import Metric
from hidl_workloads.refusal import agree

if TYPE_CHECKING:
    from mpi4py import MPI

_GPU = "/GPU:0"
_MIB = 2**20


def choose_device(communicator: MPI.Comm) -> tuple[str | None, str]:
    """Return the place of TensorFlow's operations (None: the processor) and its name; collective.

    In a run on GPUs it is the first that this rank sees, which is its own, and TensorFlow sees no other; in another run
    it sees none. This must come before TensorFlow's first operation. Raises ``Refused`` on all ranks where one of them
    has no GPU that TensorFlow can use.
    """
    import tensorflow as tf

    if not gpus.is_wanted():
        tf.config.set_visible_devices([], "GPU")
        return None, "CPU"
    found = tf.config.list_physical_devices("GPU")
    fault = gpus.untaken()
    if fault is None and not found:
        why = "its driver supports no GPU" if tf.test.is_built_with_gpu_support() else "it was built for CPUs only"
        fault = f"TensorFlow {tf.__version__} has no usable GPU on this rank: {why}"
    agree(communicator, fault)
    tf.config.set_visible_devices(found[0], "GPU")
    tf.config.experimental.set_memory_growth(
        found[0], True
    )  # otherwise, it allocates all memory, but ranks may share a GPU
    name: str = tf.config.experimental.get_device_details(found[0]).get("device_name", "GPU")
    return _GPU, name


def device_metrics(communicator: MPI.Comm, place: str | None) -> list[Metric]:
    """Return the peak memory of the ranks' GPUs, if ``place`` is one; collective."""
    import tensorflow as tf

    if place != _GPU:
        return []
    peaks = communicator.allgather(tf.config.experimental.get_memory_info("GPU:0")["peak"] / _MIB)
    return [Metric("gpu_memory", max(peaks), "MiB", peaks)]
