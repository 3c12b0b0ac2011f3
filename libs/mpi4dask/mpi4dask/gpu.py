"""Frames in GPU memory: passed to a CUDA-aware MPI directly, otherwise copied through pinned host memory.

Nothing is imported or initialised before the first frame with `__cuda_array_interface__`. This module has only been
tested without a GPU.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from typing import Any

from mpi4dask.counters import counters

logger = logging.getLogger("mpi4dask")

_VERSION = 3  # of the CUDA array interface


class DeviceBytes:
    """A range of `size` bytes in GPU memory, kept alive by its owner."""

    def __init__(self, owner: Any, pointer: int, size: int) -> None:
        self.owner = owner
        self.pointer = pointer
        self.nbytes = size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = (self.pointer, False)
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": data, "version": _VERSION, "strides": None}


class Staged:
    """Pinned host memory that replaces a piece of GPU memory during an MPI call."""

    def __init__(self, device: DeviceBytes) -> None:
        import cupy

        self.device = device
        self._memory = cupy.cuda.alloc_pinned_memory(device.nbytes)
        self.host = memoryview(self._memory).cast("B")[: device.nbytes]
        counters.staged_gpu_bytes += device.nbytes

    def from_device(self) -> None:
        """Copy from the GPU to the host, synchronously."""
        self._copy(self._memory.ptr, self.device.pointer, "memcpyDeviceToHost")

    def to_device(self) -> None:
        """Copy from the host to the GPU, synchronously."""
        self._copy(self.device.pointer, self._memory.ptr, "memcpyHostToDevice")

    def _copy(self, to: int, source: int, kind: str) -> None:
        from cupy.cuda import runtime

        runtime.memcpy(to, source, self.device.nbytes, getattr(runtime, kind))


@functools.cache
def library() -> str | None:
    """Return the library that allocates received GPU frames: "cupy" if it is installed and finds a GPU, else None."""
    if importlib.util.find_spec("cupy") is None:
        return None
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        return None
    return "cupy" if count else None


@functools.cache
def mpi_is_cuda_aware() -> bool:
    """Return whether MPI accepts GPU pointers.

    The answer is based on MPIX_Query_cuda_support (Open MPI, MPICH 4.0 and later) and on the variables that enable it:
    MV2_USE_CUDA or MVP_USE_CUDA (MVAPICH), MPICH_GPU_SUPPORT_ENABLED (Cray MPICH), MPIR_CVAR_ENABLE_GPU (MPICH).
    """
    switches = ("MV2_USE_CUDA", "MVP_USE_CUDA", "MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU")
    aware = _asked() or any(os.environ.get(name) == "1" for name in switches[:3])
    if os.environ.get("MPIR_CVAR_ENABLE_GPU") == "0":
        aware = False
    logger.info("GPU frames go %s", "to MPI directly" if aware else "through pinned host memory: MPI is not CUDA-aware")
    return aware


def _asked() -> bool:
    import ctypes

    from mpi4py import MPI

    try:
        # This also searches the libraries that the module is linked with.
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (AttributeError, OSError):
        return False
    return bool(query())


def device_bytes(buffer: Any) -> DeviceBytes:
    """Return a GPU frame as bytes; raise ValueError if it is not contiguous."""
    if isinstance(buffer, DeviceBytes):
        return buffer
    interface = buffer.__cuda_array_interface__
    if interface.get("strides") is not None and not _contiguous(interface):
        raise ValueError("a GPU frame must be contiguous")
    return DeviceBytes(buffer, interface["data"][0], buffer.nbytes)


def _contiguous(interface: dict[str, Any]) -> bool:
    step = int(interface["typestr"][2:])
    for size, stride in zip(reversed(interface["shape"]), reversed(interface["strides"]), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def piece(buffer: Any, start: int, stop: int) -> Any:
    """Return part of a host or GPU frame without copying it."""
    if not hasattr(buffer, "__cuda_array_interface__"):
        return memoryview(buffer)[start:stop]
    whole = device_bytes(buffer)
    return DeviceBytes(whole, whole.pointer + start, stop - start)


def outgoing(part: Any) -> Any:
    """Return the object to send for a piece: the piece itself, or its copy in pinned memory."""
    if not hasattr(part, "__cuda_array_interface__"):
        return part
    whole = device_bytes(part)
    _synchronize()
    if mpi_is_cuda_aware():
        return whole
    staged = Staged(whole)
    staged.from_device()
    return staged


def incoming(part: Any) -> Any:
    """Return the object to receive a piece into: the piece itself, or pinned memory that `received` copies from."""
    if not hasattr(part, "__cuda_array_interface__"):
        return part
    whole = device_bytes(part)
    return whole if mpi_is_cuda_aware() else Staged(whole)


def for_mpi(part: Any) -> Any:
    """Return the buffer to pass to mpi4py."""
    return part.host if isinstance(part, Staged) else part


def received(part: Any) -> None:
    """Copy received bytes to their destination if they were staged."""
    if isinstance(part, Staged):
        part.to_device()


def block(size: int) -> Any:
    """Allocate GPU memory for a frame."""
    import cupy

    return cupy.empty(size, dtype="u1")


def to_host(frame: Any) -> memoryview:
    """Copy a GPU frame to host memory, for connections that only have a socket."""
    staged = Staged(device_bytes(frame))
    _synchronize()
    staged.from_device()
    return staged.host


def to_device(view: memoryview) -> Any:
    """Copy host bytes to a frame in GPU memory."""
    import cupy
    import numpy

    return cupy.asarray(numpy.frombuffer(view, dtype="u1"))


def _synchronize() -> None:
    """Wait for the work on the current stream that writes the frames."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()
