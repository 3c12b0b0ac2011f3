"""A GPU whose memory the host cannot touch and whose copies run as late as they may, for tests without one.

Its tensors are those of ``opaque_device``. Computations run at once; a copy when its event is waited for, or asked for
a second time. A copy or a sum of MPI that is not ordered behind the last computation on the device finds what was there
before it, or is an ``Unordered``; a computation on memory that MPI has is an ``opaque_device.Lent``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import opaque_device
import torch
from numpy.typing import NDArray

from hidl_workloads.gpu_aware import Answer
from hidl_workloads.training.data_parallel import torch_devices
from hidl_workloads.training.data_parallel.torch_devices import Accelerator, DeviceMemory, Event

BUGS: set[str] = set()
"""What is not waited for: ``compute``, ``download``, ``upload``, ``mpi`` (before a sum), ``lent`` (after it)."""


class Unordered(RuntimeError):
    """MPI is given memory that computations may still change."""


class _Event:
    def __init__(self, stream: _Stream) -> None:
        self.number, self._stream, self._looks = len(stream.done) + len(stream.queue), stream, 0

    def query(self) -> bool:
        self._looks += 1
        if "mpi" in BUGS and isinstance(self._stream, _Computations):
            return True
        if self._looks > 1:
            self.synchronize()
        return self._looks > 1

    def synchronize(self) -> None:
        while len(self._stream.done) < self.number:
            work = self._stream.queue.popleft()
            work()
            self._stream.done.append(work)


class _Stream:
    stream_id = 1

    def __init__(self) -> None:
        self.queue: deque[Callable[[], object]] = deque()
        self.done: list[object] = []

    def record_event(self) -> _Event:
        return _Event(self)

    def wait_event(self, event: _Event) -> None:
        event.synchronize()

    def synchronize(self) -> None:
        self.record_event().synchronize()


class _Computations(_Stream):
    """The stream of computations, which have run: asking for it means that there is a new one.

    ``marked``: the events that were recorded and not yet followed by a sum of MPI, which come in the same order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.marked: deque[int] = deque()

    def compute(self) -> None:
        self.queue.append(lambda: None)

    def record_event(self) -> _Event:
        event = super().record_event()
        self.marked.append(event.number)
        return event


class Simulated(Accelerator):
    """See the module."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._computations, self._copies_down, self._copies_up = _Computations(), _Stream(), _Stream()

    def current_stream(self) -> Any:
        self._computations.compute()
        return self._computations

    def download(self, target: torch.Tensor, source: torch.Tensor, after: Iterable[Event]) -> Event:
        events = [] if "compute" in BUGS else list(after)
        ordered = any(event.number == len(self._computations.done) + len(self._computations.queue) for event in events)

        def copy() -> None:
            for event in events:
                event.synchronize()
            if ordered:
                target.copy_(source)

        self._copies_down.queue.append(copy)
        return _Ready() if "download" in BUGS else self._copies_down.record_event()

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> Event:
        self._copies_up.queue.append(lambda: target.copy_(source))
        return self._copies_up.record_event()

    def scale(self, values: torch.Tensor, factor: float) -> Event:
        if "lent" not in BUGS:
            _return(values)
        self._copies_up.queue.append(lambda: values.mul_(factor))
        return self._copies_up.record_event()

    def wait_for(self, event: Event) -> None:
        if "upload" not in BUGS:
            event.synchronize()

    def pin(self, array: NDArray[Any]) -> bool:
        assert array.ctypes.data % 4096 % 64 == 0
        return True

    def unpin(self, array: NDArray[Any]) -> None:
        self._copies_up.synchronize()

    def export(self, values: torch.Tensor) -> object:
        if self._computations.marked.popleft() > len(self._computations.done):
            raise Unordered("MPI is given memory of the device that computations have not left")
        assert isinstance(values, opaque_device.OpaqueTensor)
        opaque_device.LENT.append(values)
        kind = np.dtype(str(values.dtype).removeprefix("torch."))
        return DeviceMemory(values.held.data_ptr(), values.numel(), kind)

    def on_host(self, values: torch.Tensor) -> NDArray[Any]:
        _return(values)
        return super().on_host(values)

    def ask_mpi(self) -> Answer:
        return Answer(True, "simulated")

    def survives(self) -> str | None:
        return None


def _return(values: torch.Tensor) -> None:
    """MPI has this memory no longer."""
    opaque_device.LENT[:] = [each for each in opaque_device.LENT if each is not values]


class _Ready:
    """The event of a copy that is not waited for."""

    number = 0

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Return at once."""


def install() -> torch.device:
    """Let PyTorch and hidl know such a GPU; return its device."""
    device = opaque_device.register()
    torch_devices.KINDS[device.type] = Simulated
    return device
