"""Sums of buckets of TensorFlow's gradients: in the host's memory, or on the GPU by a GPU-aware MPI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.training.data_parallel.allreduce import Allreduce, Request
from hidl_workloads.training.data_parallel.buckets import Bucket
from hidl_workloads.training.data_parallel.gpu_proof import begin_sum
from hidl_workloads.training.data_parallel.tensorflow_devices import HOST, TensorFlowGpu


class BucketSums(Protocol):
    """The sums of all buckets of one step, by number of the bucket.

    ``place``: the device whose memory ``put`` takes and ``averages`` returns. ``presence``: for each member of the
    bucket, 1 where this rank has its gradient and 0 where it has none; after the sum, 0 where no rank has it.
    """

    place: str

    def put(self, number: int, flat: tf.Tensor, presence: NDArray[Any], *, first: bool) -> None:
        """Take the gradients of a bucket, or add them to those of passes before; ``flat`` is not changed."""

    def start(self, number: int) -> None:
        """Begin to sum a bucket over the ranks."""

    def presence(self, number: int) -> NDArray[Any]:
        """Return the sums of the bucket's presence, when all sums are complete."""

    def averages(self) -> list[tf.Tensor]:
        """Return the buckets' sums, each times the share, when all are complete.

        TensorFlow owns their memory: it may write into a tensor that it reads last, and an assigned variable may keep
        the tensor's memory instead of a copy.
        """

    def close(self) -> None:
        """Let go of the memory; collective."""


class OnHost:
    """See ``BucketSums``; one buffer of ``allreduce`` for each bucket, with its presence at the end."""

    place = HOST

    def __init__(self, allreduce: Allreduce, buckets: Sequence[Bucket]) -> None:
        self._allreduce, self._buckets = allreduce, buckets
        self._totals = [allreduce.buffer(bucket.size, bucket.dtype) for bucket in buckets]

    def put(self, number: int, flat: tf.Tensor, presence: NDArray[Any], *, first: bool) -> None:
        """See ``BucketSums``; TensorFlow's memory is read through DLPack, without a copy."""
        part = np.asarray(np.from_dlpack(flat))
        total, end = self._totals[number], self._buckets[number].presence
        if first:
            np.copyto(total[:end], part)
            np.copyto(total[end:], presence)
        else:
            total[:end] += part
            total[end:] += presence

    def start(self, number: int) -> None:
        """See ``BucketSums``."""
        self._allreduce.start(self._totals[number])

    def presence(self, number: int) -> NDArray[Any]:
        """See ``BucketSums``."""
        return self._totals[number][self._buckets[number].presence :]

    def averages(self) -> list[tf.Tensor]:
        """See ``BucketSums``."""
        sums = [total[: bucket.presence] for total, bucket in zip(self._totals, self._buckets, strict=True)]
        return [tf.raw_ops.DeepCopy(x=tf.experimental.dlpack.from_dlpack(each.__dlpack__())) for each in sums]

    def close(self) -> None:
        """See ``BucketSums``."""
        self._totals = []


class OnGpu:
    """See ``BucketSums``; MPI reads gradients and writes sums in the GPU's memory, the presence in the host's."""

    def __init__(
        self, communicator: MPI.Comm, allreduce: Allreduce, buckets: Sequence[Bucket], gpu: TensorFlowGpu, share: float
    ) -> None:
        self.place = gpu.place
        self._communicator = communicator.Dup()
        self._allreduce, self._gpu, self._share = allreduce, gpu, share
        self._presence = [np.zeros(len(bucket.members), bucket.dtype) for bucket in buckets]
        self._addends: list[Any] = [None] * len(buckets)
        self._sums = [gpu.on_device(np.zeros(bucket.presence, bucket.dtype)) for bucket in buckets]

    def put(self, number: int, flat: tf.Tensor, presence: NDArray[Any], *, first: bool) -> None:
        """See ``BucketSums``."""
        if first:
            self._addends[number] = flat
            np.copyto(self._presence[number], presence)
        else:
            with tf.device(self.place):
                self._addends[number] = self._addends[number] + flat
            self._presence[number] += presence

    def start(self, number: int) -> None:
        """See ``BucketSums``."""
        self._allreduce.start(self._presence[number], self._steps(number))

    def presence(self, number: int) -> NDArray[Any]:
        """See ``BucketSums``."""
        return self._presence[number]

    def averages(self) -> list[tf.Tensor]:
        """See ``BucketSums``."""
        with tf.device(self.place):
            return [total * tf.constant(self._share, total.dtype) for total in self._sums]

    def close(self) -> None:
        """See ``BucketSums``."""
        self._addends, self._sums = [], []
        self._communicator.Free()

    def _steps(self, number: int) -> Iterator[Request]:
        yield self._communicator.Iallreduce(MPI.IN_PLACE, self._presence[number], MPI.SUM)
        self._gpu.wait()  # for the gradients, and for readers of the last sums
        yield begin_sum(
            self._communicator, self._gpu.export(self._sums[number]), self._gpu.export(self._addends[number])
        )
        self._addends[number] = None
