"""GPUs as the averager uses them: streams, events, memory that copies run from and to while the processor goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hidl_workloads import gpu_aware
from hidl_workloads.training.data_parallel import gpu_proof

Event = Any
"""A point in a stream, with ``query``, ``synchronize`` and ``record`` as ``torch.cuda.Event`` has them."""


class Accelerator(ABC):
    """A device with streams of its own for copies to the host and back. A kind of device adds what memory it pins."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module = torch.get_device_module(device)
        self._down, self._up = self._module.Stream(device), self._module.Stream(device)

    def current_stream(self) -> Any:
        """Return the stream that this thread's computations go to."""
        return self._module.current_stream(self.device)

    def download(self, target: torch.Tensor, source: torch.Tensor, after: Iterable[Event]) -> Event:
        """Queue a copy of ``source`` to the host's ``target``, ``after`` these events; return the event of its end."""
        with self._module.stream(self._down):
            for event in after:
                self._down.wait_event(event)
            target.copy_(source, non_blocking=True)
            return self._down.record_event()

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> Event:
        """Queue a copy of the host's ``source`` to ``target``; return the event of its end."""
        with self._module.stream(self._up):
            target.copy_(source, non_blocking=True)
            return self._up.record_event()

    def scale(self, values: torch.Tensor, factor: float) -> Event:
        """Queue the multiplication of ``values``, in place; return the event of its end."""
        with self._module.stream(self._up):
            values.mul_(factor)
            return self._up.record_event()

    def wait_for(self, event: Event) -> None:
        """Let this thread's current stream, not this thread, wait for ``event``."""
        self.current_stream().wait_event(event)

    @abstractmethod
    def pin(self, array: NDArray[Any]) -> bool:
        """Have the device read and write ``array`` directly; False if its driver refuses: copies are slow then."""

    @abstractmethod
    def unpin(self, array: NDArray[Any]) -> None:
        """Undo ``pin``, before the memory is freed."""

    @abstractmethod
    def export(self, values: torch.Tensor) -> object:
        """Return what mpi4py takes for the memory of ``values``, a contiguous tensor."""

    @abstractmethod
    def ask_mpi(self) -> gpu_aware.Answer:
        """Ask MPI whether it reads and writes this kind of memory."""

    @abstractmethod
    def survives(self) -> str | None:
        """Return why MPI cannot sum such memory in a process of its own; None if it can."""

    def on_device(self, array: NDArray[Any]) -> torch.Tensor:
        """Return ``array`` on the device, when it is there."""
        values = torch.from_numpy(array).to(self.device)
        self.current_stream().synchronize()
        return values

    def on_host(self, values: torch.Tensor) -> NDArray[Any]:
        """Return a copy of ``values``, when they are computed."""
        array: NDArray[Any] = values.cpu().numpy()
        return array


class Cuda(Accelerator):
    """A GPU of CUDA, or of ROCm, which PyTorch calls by the same names."""

    def pin(self, array: NDArray[Any]) -> bool:
        """See ``Accelerator``."""
        return int(self._runtime().cudaHostRegister(array.ctypes.data, array.nbytes, 0)) == 0

    def unpin(self, array: NDArray[Any]) -> None:
        """See ``Accelerator``."""
        self._module.synchronize(self.device)
        self._runtime().cudaHostUnregister(array.ctypes.data)

    def export(self, values: torch.Tensor) -> object:
        """See ``Accelerator``."""
        return DeviceMemory(values.data_ptr(), values.numel(), np.dtype(str(values.dtype).removeprefix("torch.")))

    def ask_mpi(self) -> gpu_aware.Answer:
        """See ``Accelerator``."""
        return gpu_aware.ask("rocm" if torch.version.hip else "cuda")

    def survives(self) -> str | None:
        """See ``Accelerator``."""
        return gpu_proof.survives("torch", self.device.index or 0)

    def _runtime(self) -> Any:
        return self._module.cudart()


class DeviceMemory:
    """Contiguous numbers in a device's memory, for mpi4py; the object does not keep that memory alive.

    The caller has waited for the device: the protocol's ``stream`` states that no work is outstanding.
    """

    def __init__(self, address: int, size: int, kind: np.dtype[Any]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": kind.str,
            "strides": None,
            "version": 3,
            "stream": None,
        }


def gpu(number: int) -> Cuda:
    """Return a GPU that this process sees."""
    return Cuda(torch.device("cuda", number))


KINDS: dict[str, type[Accelerator]] = {"cuda": Cuda}
"""The kinds of device that gradients may live on, by PyTorch's names."""


def is_host(device: torch.device) -> bool:
    """Return True if memory of ``device`` is the host's, which MPI and NumPy read directly."""
    return str(device.type) == "cpu"


def accelerator_of(device: torch.device) -> Accelerator:
    """Return the accelerator; raises ``TypeError`` for a kind of device that is not supported."""
    if device.type not in KINDS:
        kinds = ", ".join(["cpu", *KINDS])
        raise TypeError(
            f"gradients on {device} cannot be averaged: parameters must be on one of these devices: {kinds}"
        )
    return KINDS[device.type](device)
