"""Participants and sizes of a collective, and a rank's two buffers as mpi4py's calls take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hidl_workloads.omb.benchmark import Datatype
from hidl_workloads.omb.buffers import Buffer
from hidl_workloads.omb.neighborhood import Neighborhood


@dataclass(frozen=True)
class Shape:
    """Participants and sizes, which the description of a collective takes."""

    rank: int
    ranks: int
    count: int
    root: int = 0
    in_place: bool = False
    """This rank gives ``MPI_IN_PLACE`` for one of its buffers."""
    neighborhood: Neighborhood | None = None

    @property
    def at_root(self) -> bool:
        """Is this rank the root?"""
        return self.rank == self.root

    @property
    def sources(self) -> tuple[int, ...]:
        """The ranks whose blocks this rank receives: its neighbours, else all."""
        return self.neighborhood.sources[self.rank] if self.neighborhood else tuple(range(self.ranks))

    @property
    def destinations(self) -> tuple[int, ...]:
        """The ranks that this rank's blocks go to: its neighbours, else all."""
        return self.neighborhood.destinations[self.rank] if self.neighborhood else tuple(range(self.ranks))

    @property
    def portions(self) -> list[int]:
        """The elements of one message that each rank gets: as equal as can be, the first ranks one more."""
        return [self.count // self.ranks + (rank < self.count % self.ranks) for rank in range(self.ranks)]


@dataclass(frozen=True)
class Ends:
    """A rank's two buffers, as mpi4py's calls take them."""

    shape: Shape
    datatype: Datatype
    sent: Buffer
    received: Buffer

    def send(self, count: int | None = None) -> Any:
        """Return the data to send, or ``MPI_IN_PLACE``; without ``count``, as many messages as the shape has."""
        return in_place() if self.shape.in_place else self.send_always(count)

    def send_always(self, count: int | None = None) -> Any:
        """Return the data to send, if ``MPI_IN_PLACE`` replaces the other buffer."""
        return self.sent.memory, self.shape.count if count is None else count, self.datatype.mpi

    def receive(self, count: int | None = None) -> Any:
        """Return the buffer that receives."""
        return self.received.memory, self.shape.count if count is None else count, self.datatype.mpi

    def send_blocks(self) -> Any:
        """With counts and displacements, one block for each destination."""
        return in_place() if self.shape.in_place else self._blocks(self.sent, len(self.shape.destinations))

    def send_blocks_always(self) -> Any:
        """The same, where ``MPI_IN_PLACE`` stands for the other buffer."""
        return self._blocks(self.sent, len(self.shape.destinations))

    def receive_blocks(self) -> Any:
        """With counts and displacements, one block from each source."""
        return self._blocks(self.received, len(self.shape.sources))

    def send_typed_blocks(self) -> Any:
        """With counts, displacements in bytes and datatypes."""
        return in_place() if self.shape.in_place else self._typed_blocks(self.sent, len(self.shape.destinations))

    def receive_typed_blocks(self) -> Any:
        """With counts, displacements in bytes and datatypes."""
        return self._typed_blocks(self.received, len(self.shape.sources))

    def objects(self) -> Sequence[Any]:
        """Return NumPy arrays to send pickled, one for each destination."""
        whole, count = self.object(), self.shape.count
        return [whole[block * count : (block + 1) * count] for block in range(len(self.shape.destinations))]

    def object(self) -> Any:
        """Return one NumPy array to send pickled."""
        import numpy as np

        return np.frombuffer(self.sent.memory, self.datatype.numpy)

    def _blocks(self, buffer: Buffer, number: int) -> Any:
        count = self.shape.count
        displacements = [count * block for block in range(number)]
        return buffer.memory, [count] * number, displacements, self.datatype.mpi

    def _typed_blocks(self, buffer: Buffer, number: int) -> Any:
        count = self.shape.count
        displacements = [count * block * self.datatype.size for block in range(number)]
        return buffer.memory, [count] * number, displacements, [self.datatype.mpi] * number


def in_place() -> Any:
    """``MPI_IN_PLACE``."""
    from mpi4py import MPI

    return MPI.IN_PLACE
