"""Sums of a bucket on a GPU: staged through the host's memory, or passed to MPI directly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.training.data_parallel.allreduce import Allreduce, Request, pieces
from hidl_workloads.training.data_parallel.gpu_proof import begin_sum
from hidl_workloads.training.data_parallel.torch_devices import Accelerator, Event


class Lane(Protocol):
    """The way of one bucket: ``touch`` after each change of it, ``steps`` when it is full, ``finish`` at the end."""

    def touch(self) -> None:
        """Remember the stream of this thread, which has just been given work on the bucket."""

    def steps(self) -> Iterator[Request]:
        """Begin to sum the bucket in place; yield what is to be completed, one after the other."""

    def finish(self) -> None:
        """Let the current stream wait until the sums are in the bucket."""

    def close(self) -> None:
        """Let go of the memory."""


class Staged:
    """Copies to pinned memory of the host, sums there, and copies back, in pieces that overtake nothing.

    While a piece is summed, the following ones come down and those before go up. ``buffer`` is the host's, as
    ``allreduce`` made it; it may go on behind the bucket's end, with numbers that the host alone has.
    """

    def __init__(
        self, accelerator: Accelerator, allreduce: Allreduce, bucket: torch.Tensor, buffer: NDArray[Any]
    ) -> None:
        self._accelerator, self._allreduce, self._buffer = accelerator, allreduce, buffer
        self._streams: dict[Any, Any] = {}
        self._uploaded: Event | None = None
        self._pinned = accelerator.pin(buffer)
        if not self._pinned:
            warnings.warn(
                f"the driver cannot pin {buffer.nbytes} bytes of host memory, so copies to and from the GPU are "
                "slower and wait for each other",
                RuntimeWarning,
                stacklevel=2,
            )
        self._pieces = []
        begin = 0
        for piece in pieces(buffer):
            part = bucket[begin : begin + len(piece)]
            self._pieces.append((part, torch.from_numpy(piece)[: len(part)], piece))
            begin += len(piece)

    def touch(self) -> None:
        """See ``Lane``."""
        _remember(self._streams, self._accelerator)

    def steps(self) -> Iterator[Request]:
        """See ``Lane``."""
        after = _events(self._streams)
        if self._uploaded is not None:
            after.append(self._uploaded)  # the upload reads the memory that the copies write
        arrivals = [self._accelerator.download(host, part, after) for part, host, _ in self._pieces]
        return self._sum(arrivals)

    def finish(self) -> None:
        """See ``Lane``."""
        if self._uploaded is not None:
            self._accelerator.wait_for(self._uploaded)

    def close(self) -> None:
        """See ``Lane``."""
        if self._pinned:
            self._accelerator.unpin(self._buffer)

    def _sum(self, arrivals: Sequence[Event]) -> Iterator[Request]:
        for arrival, (part, host, piece) in zip(arrivals, self._pieces, strict=True):
            yield _Reached(arrival)
            yield from self._allreduce.steps(piece)
            self._uploaded = self._accelerator.upload(part, host)


class Direct:
    """Hands the bucket to MPI where it is; ``presence``, the host's numbers, are summed by themselves."""

    def __init__(
        self,
        accelerator: Accelerator,
        communicator: MPI.Comm,
        share: float,
        bucket: torch.Tensor,
        presence: NDArray[Any],
    ) -> None:
        self._accelerator, self._communicator, self._share = accelerator, communicator, share
        self._bucket, self._presence = bucket, presence
        self._streams: dict[Any, Any] = {}
        self._scaled: Event | None = None

    def touch(self) -> None:
        """See ``Lane``."""
        _remember(self._streams, self._accelerator)

    def steps(self) -> Iterator[Request]:
        """See ``Lane``."""
        return self._sum(_events(self._streams))

    def finish(self) -> None:
        """See ``Lane``."""
        if self._scaled is not None:
            self._accelerator.wait_for(self._scaled)

    def close(self) -> None:
        """See ``Lane``."""

    def _sum(self, computed: Sequence[Event]) -> Iterator[Request]:
        yield self._communicator.Iallreduce(MPI.IN_PLACE, self._presence, MPI.SUM)
        self._presence *= self._share
        for event in computed:  # MPI does not support streams
            yield _Reached(event)
        yield begin_sum(self._communicator, self._accelerator.export(self._bucket))
        self._scaled = self._accelerator.scale(self._bucket, self._share)


class _Reached:
    """Waits for an event as for a request of MPI."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def Test(self) -> bool:  # as MPI.Request has it
        return bool(self._event.query())

    def Wait(self) -> object:
        return self._event.synchronize()


def _remember(streams: dict[Any, Any], accelerator: Accelerator) -> None:
    stream = accelerator.current_stream()
    streams[stream.stream_id] = stream


def _events(streams: dict[Any, Any]) -> list[Event]:
    """Return the events of all that these streams hold, and forget the streams."""
    events = [stream.record_event() for stream in streams.values()]
    streams.clear()
    return events
