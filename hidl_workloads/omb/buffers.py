"""Buffers of messages, on the host or on a device, and the patterns that -c checks.

mpi4py takes ``[memory, count, datatype]``; a tuple of the three that is made once, outside of the timed loop, is what
it takes quickest (docs/explanation/omb.md). Host buffers begin on a page, as OMB's do.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hidl_workloads import gpu_aware
from hidl_workloads.omb.options import Options, UsageError

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray

    from hidl_workloads.omb.benchmark import Datatype

Message = Any
"""What mpi4py's calls take for a buffer: ``(memory, count, datatype)``; for pickled messages the object itself."""

# The letter that OMB writes. Memory that was never written maps to a single page of zeros, which fits in any cache.
_LETTER = ord("a")

PERIOD = 101  # a prime, of which no power of two is a multiple, so messages that are mixed up differ


class Buffer(ABC):
    """Memory of ``size`` bytes that MPI can send from or receive into."""

    memory: Any
    """The object that mpi4py takes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def message(self, count: int, datatype: Datatype, start: int = 0) -> Message:
        """The message of ``count`` elements that begins at byte ``start``."""
        return (self.part(start, count * datatype.size), count, datatype.mpi)

    def room(self, count: int, datatype: Datatype, start: int = 0) -> Message:
        """The same, to receive into."""
        return self.message(count, datatype, start)

    def received(self, arrived: Any) -> None:
        """Take what the receiving call gave back."""
        del arrived  # MPI has already written it to the memory

    def part(self, start: int, size: int) -> Any:
        """``size`` bytes from byte ``start`` on, as mpi4py takes them."""
        return self.memory[start : start + size]

    def write(self, data: NDArray[Any], start: int = 0) -> None:
        """Copy ``data`` into the buffer, from byte ``start`` on."""
        raw = data.view("u1")
        self.host(start, raw.size)[:] = raw

    def read(self, size: int, start: int = 0) -> NDArray[np.uint8]:
        """``size`` bytes of what the buffer holds, from byte ``start`` on."""
        return self.host(start, size)

    @abstractmethod
    def host(self, start: int, size: int) -> NDArray[np.uint8]:
        """A view of a part of the memory, where it lies on the host."""


class MemoryBuffer(Buffer):
    """Memory that another has allocated, such as MPI; anything that ``memoryview`` takes."""

    def __init__(self, memory: Any) -> None:
        self.memory = memoryview(memory).cast("B")
        super().__init__(self.memory.nbytes)

    def host(self, start: int, size: int) -> NDArray[np.uint8]:
        import numpy as np

        return np.frombuffer(self.memory, np.uint8)[start : start + size]


class BytearrayBuffer(MemoryBuffer):
    """A ``bytearray``, of which a view is used that begins on a page."""

    def __init__(self, size: int) -> None:
        raw = bytearray(_LETTER.to_bytes(1, "little")) * (size + mmap.PAGESIZE)
        start = _to_page(_address(raw))
        super().__init__(memoryview(raw)[start : start + size])


class NumpyBuffer(Buffer):
    """A NumPy array of bytes that begins on a page."""

    def __init__(self, size: int) -> None:
        import numpy as np

        super().__init__(size)
        raw = np.full(size + mmap.PAGESIZE, _LETTER, np.uint8)
        start = _to_page(raw.ctypes.data)
        self.memory = raw[start : start + size]

    def host(self, start: int, size: int) -> NDArray[np.uint8]:
        part: NDArray[np.uint8] = self.memory[start : start + size]
        return part


class TorchBuffer(Buffer):
    """A torch tensor of bytes: on the host through its NumPy view, which shares the memory; on a device as it is."""

    def __init__(self, size: int, device: bool) -> None:
        torch = _library("torch", "torch")
        super().__init__(size)
        if device:
            self.memory = torch.zeros(size, dtype=torch.uint8, device="cuda")
            return
        raw = torch.full((size + mmap.PAGESIZE,), _LETTER, dtype=torch.uint8)
        start = _to_page(raw.data_ptr())
        self.memory = raw[start : start + size].numpy()

    def write(self, data: NDArray[Any], start: int = 0) -> None:
        if self._on_host():
            super().write(data, start)
            return
        import torch

        raw = data.view("u1")
        self.memory[start : start + raw.size].copy_(torch.from_numpy(raw.copy()))
        torch.cuda.synchronize()

    def read(self, size: int, start: int = 0) -> NDArray[np.uint8]:
        if self._on_host():
            return super().read(size, start)
        host: NDArray[np.uint8] = self.memory[start : start + size].cpu().numpy()
        return host

    def host(self, start: int, size: int) -> NDArray[np.uint8]:
        part: NDArray[np.uint8] = self.memory[start : start + size]
        return part

    def _on_host(self) -> bool:
        import numpy as np

        return isinstance(self.memory, np.ndarray)


class CupyBuffer(Buffer):
    """A CuPy array of bytes, on the current device."""

    def __init__(self, size: int) -> None:
        cupy = _library("cupy", "cupy")
        super().__init__(size)
        self.memory = cupy.zeros(size, cupy.uint8)
        cupy.cuda.get_current_stream().synchronize()

    def write(self, data: NDArray[Any], start: int = 0) -> None:
        import cupy

        raw = data.view("u1")
        self.memory[start : start + raw.size].set(raw)
        cupy.cuda.get_current_stream().synchronize()

    def read(self, size: int, start: int = 0) -> NDArray[np.uint8]:
        host: NDArray[np.uint8] = self.memory[start : start + size].get()
        return host

    def host(self, start: int, size: int) -> NDArray[np.uint8]:
        raise TypeError("the memory lies on a device")


class NumbaBuffer(Buffer):
    """A device array of ``numba.cuda``, of bytes."""

    def __init__(self, size: int) -> None:
        import numpy as np

        cuda = _library("numba.cuda", "numba")
        super().__init__(size)
        self.memory = cuda.to_device(np.zeros(size, np.uint8))
        cuda.synchronize()

    def write(self, data: NDArray[Any], start: int = 0) -> None:
        from numba import cuda

        raw = data.view("u1")
        self.memory[start : start + raw.size].copy_to_device(raw)
        cuda.synchronize()

    def read(self, size: int, start: int = 0) -> NDArray[np.uint8]:
        host: NDArray[np.uint8] = self.memory[start : start + size].copy_to_host()
        return host

    def host(self, start: int, size: int) -> NDArray[np.uint8]:
        raise TypeError("the memory lies on a device")


class PickleBuffer(BytearrayBuffer):
    """A ``bytearray`` that is pickled on its way; what arrives is another object, which ``received`` takes."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.memory = bytearray(_LETTER.to_bytes(1, "little")) * size

    def message(self, count: int, datatype: Datatype, start: int = 0) -> Message:
        return self.memory

    def room(self, count: int, datatype: Datatype, start: int = 0) -> Message:
        return None

    @staticmethod
    def pickled_size(size: int) -> int:
        """Bytes that a ``bytearray`` of ``size`` bytes may take when it is pickled (protocol 5 adds 13 to 22)."""
        return size + 64

    def received(self, arrived: Any) -> None:
        """Take the object that a call gave back, as what the buffer holds."""
        self.memory = arrived


_ON_DEVICE = frozenset({"cupy", "torch", "numba"})
_ON_HOST = frozenset({"bytearray", "numpy", "torch", "pickle"})


def allocate(kind: str, size: int, *, device: bool = False) -> Buffer:
    """A buffer of ``size`` bytes; CuPy's and Numba's lie on a device in any case.

    Raises ``UsageError`` where its library is not installed or sees no device, or the kind is none of a device's.
    """
    if device and kind not in _ON_DEVICE:
        raise UsageError(f"buffers of kind {kind} cannot be on a device; supported: cupy, numba, torch")
    if kind == "torch":
        return TorchBuffer(size, device)
    kinds: dict[str, type[Any]] = {
        "bytearray": BytearrayBuffer,
        "numpy": NumpyBuffer,
        "cupy": CupyBuffer,
        "numba": NumbaBuffer,
        "pickle": PickleBuffer,
    }
    buffer: Buffer = kinds[kind](size)
    return buffer


def check(communicator: MPI.Comm, options: Options) -> None:
    """Raise ``UsageError`` on all ranks where one of them cannot have the buffers that the options ask for."""
    fault = ""
    try:
        for_rank(options, communicator.rank, 1)
    except UsageError as error:
        fault = str(error)
    except Exception as error:  # a library without a device or driver raises its own exceptions
        fault = f"buffers of kind {options.buffer} are not available: {type(error).__name__}: {error}"
    if not fault and on_device(options, communicator.rank):
        fault = unreadable(options.buffer)
    faults = dict.fromkeys(told for told in communicator.allgather(fault) if told)
    if faults:
        raise UsageError(*faults)


def unreadable(kind: str) -> str:
    """Return why MPI would crash on this process's buffers on a device; empty if nothing is known against it."""
    answer = gpu_aware.ask("rocm" if _is_of_rocm(kind) else "cuda")
    if answer.aware is not False:
        return ""
    return (
        f"buffers of kind {kind} are in GPU memory, which this MPI library does not read ({answer.source}): use a "
        "GPU-aware library, or buffers on the host"
    )


def _is_of_rocm(kind: str) -> bool:
    if kind == "torch":
        import torch

        return torch.version.hip is not None
    if kind == "cupy":
        import cupy

        return bool(cupy.cuda.runtime.is_hip)
    return False


def on_device(options: Options, rank: int) -> bool:
    """Return True if this rank's buffers are on a device.

    ``-d`` or ``H D`` after the options (rank 0, the others) decide; without them, the kind of buffer does.
    """
    by_kind = "D" not in options.places and options.buffer not in _ON_HOST
    return options.accelerator or options.places[0 if rank == 0 else 1] == "D" or by_kind


def for_rank(options: Options, rank: int, size: int) -> Buffer:
    """A buffer of ``size`` bytes of the kind and in the place that the options say for this rank.

    Where one side of ``H D`` is the host and the kind is a device's, the host's buffer is NumPy's.
    """
    device = on_device(options, rank)
    mixed = "D" in options.places and not device
    kind = "numpy" if mixed and options.buffer not in _ON_HOST else options.buffer
    return allocate(kind, size, device=device)


def pattern(count: int, datatype: Datatype, iteration: int, source: int) -> NDArray[Any]:
    """``count`` elements from 0 to 100 that tell the iteration and the rank ``source``, as the datatype.

    All of them are exact in each of OMB's datatypes. The array is read-only.
    """
    offset = (13 * iteration + 31 * source) % PERIOD
    return _sequence(count + PERIOD, datatype.numpy)[offset : offset + count]


@lru_cache(maxsize=4)
def _sequence(count: int, numpy_type: str) -> NDArray[Any]:
    import numpy as np

    one_period = (np.arange(PERIOD) * 7 % PERIOD).astype(numpy_type)
    sequence = np.resize(one_period, count)
    sequence.flags.writeable = False
    return sequence


def differences(buffer: Buffer, expected: NDArray[Any], start: int = 0) -> int:
    """Count the elements of the buffer, from byte ``start`` on, that differ from ``expected``."""
    import numpy as np

    found = buffer.read(expected.nbytes, start)
    if found.size != expected.nbytes:
        return int(expected.size)
    return int(np.count_nonzero(found.view(expected.dtype) != expected))


def _library(module: str, distribution: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"--buffer {distribution} requires the library {distribution}, which is not installed ({error})"
        ) from error


def _to_page(address: int) -> int:
    return -address % mmap.PAGESIZE


def _address(raw: bytearray) -> int:
    import ctypes

    return ctypes.addressof((ctypes.c_char * len(raw)).from_buffer(raw))
