"""Devices of arrays and their way to MPI: NumPy on the host, or CuPy on one GPU per rank."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from hidl_workloads import gpu_aware
from hidl_workloads.gpus import is_wanted, untaken
from hidl_workloads.ml.streams import Array
from hidl_workloads.refusal import Refused, agree

Buffers = Literal["staged", "direct"]


class Device:
    """An array library, ``xp``, with the few operations whose arrays MPI has to see.

    ``direct``: CuPy's arrays are handed to MPI as they are, which needs a CUDA-aware library; else they are copied to
    the host's memory and back.
    """

    def __init__(self, xp: ModuleType, title: str, *, gpu: bool = False, direct: bool = False) -> None:
        self.xp, self.title = xp, title
        self._gpu, self._direct = gpu, direct

    @property
    def versions(self) -> dict[str, str]:
        """The array library's version, for the metrics document."""
        return {self.xp.__name__: self.xp.__version__}

    def array(self, values: Array) -> Array:
        """A host's array on the device; on the host, itself."""
        return self.xp.asarray(values)

    def host(self, values: Array) -> Array:
        """An array of the device on the host; on the host, itself."""
        return self.xp.asnumpy(values) if self._gpu else values

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        if self._gpu:
            self.xp.cuda.get_current_stream().synchronize()

    def allreduce(self, communicator: MPI.Comm, values: Array) -> None:
        """Sum the contiguous array ``values`` over all ranks, in place."""
        buffer = self._outgoing(values)
        communicator.Allreduce(MPI.IN_PLACE, buffer, MPI.SUM)
        self._incoming(values, buffer)

    def ibcast(self, communicator: MPI.Comm, values: Array, root: int) -> Any:
        """Begin to send the contiguous array ``values`` from ``root`` to all ranks; call the result to wait for it."""
        buffer = self._outgoing(values)
        request = MPI.REQUEST_NULL
        if self._direct and not gpu_aware.has_nonblocking_collectives():
            communicator.Bcast(buffer, root)
        else:
            request = communicator.Ibcast(buffer, root)

        def finish() -> None:
            request.Wait()
            self._incoming(values, buffer)

        return finish

    def largest(self, communicator: MPI.Comm, values: Array) -> float:
        """The largest absolute value on all ranks; 0 where there is none."""
        own = float(self.xp.abs(values).max()) if values.size else 0.0
        return float(communicator.allreduce(own, MPI.MAX))

    def _outgoing(self, values: Array) -> Array:
        """Return memory that MPI may read and write, after the device's queue, which MPI does not see, has run."""
        self.synchronize()
        return values if self._direct else self.host(values)

    def _incoming(self, values: Array, buffer: Array) -> None:
        if buffer is not values:
            values[...] = self.array(buffer)


def choose(communicator: MPI.Comm, buffers: Buffers) -> Device:
    """Return the device of this rank: on GPUs the first that it sees, which is its own (``hidl_workloads.gpus``).

    Raises ``Refused`` on all ranks where one of them has no CuPy or no GPU.
    """
    if not is_wanted():
        return Device(np, f"NumPy {np.__version__} on the host")
    if fault := untaken():
        raise Refused(fault)
    device, fault = _gpu(buffers)
    agree(communicator, fault)
    assert device is not None
    return device


def _gpu(buffers: Buffers) -> tuple[Device | None, str | None]:
    try:
        import cupy
    except ImportError as error:
        return (
            None,
            f"computing on GPUs requires CuPy in the stack: {error}; add --with cupy-cuda12x, or use --device cpu",
        )
    try:
        cupy.cuda.Device(0).use()
        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return None, f"CuPy has no usable GPU on this rank: {error}"
    if buffers == "direct":
        answer = gpu_aware.ask("rocm" if cupy.cuda.runtime.is_hip else "cuda")
        if answer.aware is False:
            return None, f"gpu_buffers='direct' requires an MPI library that reads GPU memory: {answer.source}"
    way = "passed to MPI as they are" if buffers == "direct" else "staged through host memory"
    title = f"CuPy {cupy.__version__} on {name}, arrays {way}"
    return Device(cupy, title, gpu=True, direct=buffers == "direct"), None
