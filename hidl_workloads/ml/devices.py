"""Where arrays live, and how they reach MPI: NumPy on the host, or CuPy on one GPU for each rank."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from hidl_workloads.ml.streams import Array
from hidl_workloads.refusal import agree

Kind = Literal["cpu", "gpu"]
Buffers = Literal["staged", "direct"]


class Device:
    """An array library, ``xp``, with the few operations whose arrays MPI has to see.

    ``direct``: CuPy's arrays are handed to MPI as they are, which needs a CUDA-aware library; else they are copied to
    the host's memory and back. No library tells mpi4py which of the two it can, so the user does.
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
        """Wait for all that the device was told to compute."""
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
        """What MPI may read and write: it knows nothing of the device's queue, so what is in it must be done."""
        self.synchronize()
        return values if self._direct else self.host(values)

    def _incoming(self, values: Array, buffer: Array) -> None:
        if buffer is not values:
            values[...] = self.array(buffer)


def choose(communicator: MPI.Comm, kind: Kind, buffers: Buffers) -> Device:
    """Return the device of this rank: on a node with several GPUs, its ranks take turns.

    Raises ``Refused`` on all ranks where one of them has no CuPy or no GPU.
    """
    if kind == "cpu":
        return Device(np, f"NumPy {np.__version__} on the host")
    neighbours = communicator.Split_type(MPI.COMM_TYPE_SHARED)
    on_node = neighbours.rank
    neighbours.Free()
    device, fault = _gpu(on_node, buffers)
    agree(communicator, fault)
    assert device is not None
    return device


def _gpu(on_node: int, buffers: Buffers) -> tuple[Device | None, str | None]:
    try:
        import cupy
    except ImportError as error:
        return None, f"device=gpu needs CuPy in the stack ({error}); install cupy-cuda12x or cupy-cuda13x into it"
    try:
        cupy.cuda.Device(on_node % cupy.cuda.runtime.getDeviceCount()).use()
        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    except (cupy.cuda.runtime.CUDARuntimeError, ZeroDivisionError) as error:
        return None, f"device=gpu, but this rank has no GPU that can be used ({error})"
    way = "handed to MPI as they are" if buffers == "direct" else "staged through the host's memory"
    title = f"CuPy {cupy.__version__} on {name}, arrays {way}"
    return Device(cupy, title, gpu=True, direct=buffers == "direct"), None
