"""Frames in GPU memory: given to MPI as they are where it is CUDA-aware, else through pinned host memory.

Nothing here is imported or done before the first frame with `__cuda_array_interface__` comes along. This module has
been held only by what can be tried without a GPU.
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
    """`size` bytes of GPU memory from an address on, kept alive by their owner."""

    def __init__(self, owner: Any, pointer: int, size: int) -> None:
        self.owner = owner
        self.pointer = pointer
        self.nbytes = size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = (self.pointer, False)
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": data, "version": _VERSION, "strides": None}


class Staged:
    """Pinned host memory that stands for a piece of GPU memory while MPI works on it."""

    def __init__(self, device: DeviceBytes) -> None:
        import cupy

        self.device = device
        self._memory = cupy.cuda.alloc_pinned_memory(device.nbytes)
        self.host = memoryview(self._memory).cast("B")[: device.nbytes]
        counters.staged_gpu_bytes += device.nbytes

    def from_device(self) -> None:
        """Copy to the host, and wait for it."""
        self._copy(self._memory.ptr, self.device.pointer, "memcpyDeviceToHost")

    def to_device(self) -> None:
        """Copy to the GPU, and wait for it."""
        self._copy(self.device.pointer, self._memory.ptr, "memcpyHostToDevice")

    def _copy(self, to: int, source: int, kind: str) -> None:
        from cupy.cuda import runtime

        runtime.memcpy(to, source, self.device.nbytes, getattr(runtime, kind))


@functools.cache
def library() -> str | None:
    """The library that GPU frames are received into: "cupy" where it is installed and sees a GPU, else None."""
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
    """Whether MPI takes GPU pointers, by what it says itself, or by the variables that switch it on.

    MVAPICH reads MV2_USE_CUDA or MVP_USE_CUDA, Cray MPICH MPICH_GPU_SUPPORT_ENABLED, MPICH MPIR_CVAR_ENABLE_GPU;
    Open MPI (and MPICH from 4.0 on) answers to MPIX_Query_cuda_support.
    """
    switches = ("MV2_USE_CUDA", "MVP_USE_CUDA", "MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU")
    aware = _asked() or any(os.environ.get(name) == "1" for name in switches[:3])
    if os.environ.get("MPIR_CVAR_ENABLE_GPU") == "0":
        aware = False
    logger.info("GPU frames go %s", "to MPI as they are" if aware else "through pinned host memory: MPI lacks CUDA")
    return aware


def _asked() -> bool:
    import ctypes

    from mpi4py import MPI

    try:
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support  # looks through what the module is linked to
    except (AttributeError, OSError):
        return False
    return bool(query())


def device_bytes(buffer: Any) -> DeviceBytes:
    """A GPU frame as bytes; ValueError where it is not contiguous."""
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
    """Part of a host or GPU frame, without a copy."""
    if not hasattr(buffer, "__cuda_array_interface__"):
        return memoryview(buffer)[start:stop]
    whole = device_bytes(buffer)
    return DeviceBytes(whole, whole.pointer + start, stop - start)


def outgoing(part: Any) -> Any:
    """What MPI sends for a piece: itself, or its copy in pinned memory."""
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
    """What MPI receives a piece into: itself, or pinned memory that `received` copies from."""
    if not hasattr(part, "__cuda_array_interface__"):
        return part
    whole = device_bytes(part)
    return whole if mpi_is_cuda_aware() else Staged(whole)


def for_mpi(part: Any) -> Any:
    """The buffer that mpi4py is given."""
    return part.host if isinstance(part, Staged) else part


def received(part: Any) -> None:
    """The bytes have arrived: put them where they belong."""
    if isinstance(part, Staged):
        part.to_device()


def block(size: int) -> Any:
    """Fresh GPU memory for a frame."""
    import cupy

    return cupy.empty(size, dtype="u1")


def to_host(frame: Any) -> memoryview:
    """A GPU frame's bytes in host memory, for connections that only have a socket."""
    staged = Staged(device_bytes(frame))
    _synchronize()
    staged.from_device()
    return staged.host


def to_device(view: memoryview) -> Any:
    """Host bytes as a frame in GPU memory."""
    import cupy
    import numpy

    return cupy.asarray(numpy.frombuffer(view, dtype="u1"))


def _synchronize() -> None:
    """Let the work on the default stream that writes the frames end first."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()
