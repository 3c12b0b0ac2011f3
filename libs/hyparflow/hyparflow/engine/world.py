"""The ranks of a training, the communicators between them, and waiting for MPI.

World rank = (replica * spatial + part) * partitions + partition. Forward tensors and backward gradients have
communicators of their own, one pair per replica and pipeline, so that messages of different kinds cannot be confused.

MPI's own waiting spins. That is fine if a rank has a core to itself and waits for microseconds, but takes time from
other ranks on the same core, and from threads of the process that load the next batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hyparflow.errors import WorldError

#: Create_group requires a tag on the communicator.
_GROUP_TAG = 1000
_SPIN_SECONDS = 500e-6
_SHORTEST_NAP, _LONGEST_NAP = 50e-6, 2e-3  # seconds


@dataclass(frozen=True)
class Seat:
    """The position of a rank in a training with ``replicas`` x ``spatial`` x ``partitions`` ranks.

    ``part``: of the replica's images, which ``spatial`` ranks share.
    """

    partitions: int
    replicas: int
    replica: int
    partition: int
    spatial: int = 1
    part: int = 0

    @classmethod
    def of(cls, rank: int, size: int, partitions: int, replicas: int, spatial: int = 1) -> Seat:
        """Return the seat of a world rank.

        Args:
            rank: The world rank.
            size: The number of ranks.
            partitions: Partitions of the model.
            replicas: Copies of the model.
            spatial: Parts of the images (default: 1).

        Raises:
            WorldError: ``size`` is not the product of the others.
        """
        if size != partitions * replicas * spatial:
            parts = f" x {spatial} parts of the images" if spatial > 1 else ""
            needed = (
                f"{partitions} partitions x {replicas} replicas{parts} need {partitions * replicas * spatial} ranks"
            )
            raise WorldError(f"{needed}, and {size} were started: start that many, or use another plan")
        column, partition = divmod(rank, partitions)
        replica, part = divmod(column, spatial)
        return cls(partitions, replicas, replica, partition, spatial, part)

    def ranks(self, partitions: Iterable[int]) -> list[int]:
        """Return the world ranks with these partitions in any replica and part, in order."""
        wanted = sorted(set(partitions))
        columns = range(self.replicas * self.spatial)
        return [column * self.partitions + each for column in columns for each in wanted]


class World:
    """The communicators of one rank. Creating them is collective over ``comm``, and so is ``close``.

    Attributes:
        comm: All ranks of the training (a duplicate without other messages).
        replica: The ranks of this replica (with ``spatial``, of this part of its images), in order of partitions.
        forward: For each pipeline, the replica's ranks, for tensors.
        backward: For each pipeline, the replica's ranks, for the returning gradients.
        parts: Two communicators of the ranks that compute the same stages for the parts of the same images: one for
            rows of tensors, one for their gradients. Empty if images are not divided.
    """

    def __init__(self, comm: Any, partitions: int, replicas: int, pipelines: int = 1, spatial: int = 1) -> None:
        """Create the communicators.

        Args:
            comm: mpi4py's communicator of exactly partitions * replicas * spatial ranks.
            partitions: Partitions of the model.
            replicas: Copies of the model.
            pipelines: Pipelines of the schedule (default: 1).
            spatial: Parts of the images (default: 1).
        """
        self.seat = seat = Seat.of(comm.Get_rank(), comm.Get_size(), partitions, replicas, spatial)
        self.comm = comm.Dup()
        self.replica = self.comm.Split(seat.replica * spatial + seat.part, seat.partition)
        self.parts: tuple[Any, ...] = ()
        if spatial > 1:
            of_stage = seat.replica * partitions + seat.partition
            self.parts = tuple(self.comm.Split(of_stage, seat.part) for _ in range(2))
        self.forward = tuple(self.replica.Dup() for _ in range(pipelines))
        self.backward = tuple(self.replica.Dup() for _ in range(pipelines))
        self._owners: dict[tuple[bool, tuple[int, ...]], Any] = {}

    def owners(self, partitions: Iterable[int], *, all_replicas: bool = True) -> Any:
        """Return the communicator of the ranks with these partitions, including this rank, in all replicas or its own.

        The call is collective over those ranks, and a communicator is created once per set of partitions. Every rank
        must first request its sets in the order of ``sorted(sets)``, so that no two ranks wait for each other.
        """
        key = (all_replicas, tuple(sorted(set(partitions))))
        if key not in self._owners:
            parent, ranks = (self.comm, self.seat.ranks(key[1])) if all_replicas else (self.replica, list(key[1]))
            everybody = parent.Get_group()
            group = everybody.Incl(ranks)
            self._owners[key] = parent.Create_group(group, _GROUP_TAG)
            group.Free()
            everybody.Free()
        return self._owners[key]

    def close(self) -> None:
        """Free the communicators."""
        for comm in (*self._owners.values(), *self.parts, *self.forward, *self.backward, self.replica, self.comm):
            comm.Free()
        self._owners.clear()


def check_threads() -> None:
    """Raise WorldError unless MPI permits calls from TensorFlow's threads, one at a time."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise WorldError(
            "parts of images exchange rows in TensorFlow's threads, which requires MPI_THREAD_SERIALIZED: "
            "remove mpi4py.rc.threads and mpi4py.rc.thread_level"
        )


def wait(request: Any) -> None:
    """Wait for a request: poll often at first, then sleep for times that grow with the time waited."""
    if request.Test():
        return
    begin = time.perf_counter()
    while not request.Test():
        waited = time.perf_counter() - begin
        if waited > _SPIN_SECONDS:
            time.sleep(min(max(_SHORTEST_NAP, waited / 100), _LONGEST_NAP))
