"""The ranks of a training, the communicators between them, and waiting for MPI.

World rank = replica * partitions + partition. Forward tensors and backward gradients have communicators of their own,
one pair per replica and pipeline, so that messages of different kinds cannot be confused.

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
    """The position of a rank in a training with ``replicas`` x ``partitions`` ranks."""

    partitions: int
    replicas: int
    replica: int
    partition: int

    @classmethod
    def of(cls, rank: int, size: int, partitions: int, replicas: int) -> Seat:
        """Return the seat of a world rank; raise WorldError if ``size`` is not partitions * replicas."""
        if size != partitions * replicas:
            needed = f"{partitions} partitions x {replicas} replicas need {partitions * replicas} ranks"
            raise WorldError(f"{needed}, and {size} were started: start that many, or use another plan")
        return cls(partitions, replicas, *divmod(rank, partitions))

    def ranks(self, partitions: Iterable[int]) -> list[int]:
        """Return the world ranks with these partitions in any replica, in order."""
        wanted = sorted(set(partitions))
        return [replica * self.partitions + each for replica in range(self.replicas) for each in wanted]


class World:
    """The communicators of one rank. Creating them is collective over ``comm``, and so is ``close``.

    Attributes:
        comm: All ranks of the training (a duplicate without other messages).
        replica: The ranks of this replica, in order of partitions.
        forward: For each pipeline, the replica's ranks, for tensors.
        backward: For each pipeline, the replica's ranks, for the returning gradients.
    """

    def __init__(self, comm: Any, partitions: int, replicas: int, pipelines: int = 1) -> None:
        """Create the communicators.

        Args:
            comm: mpi4py's communicator of exactly partitions * replicas ranks.
            partitions: Partitions of the model.
            replicas: Copies of the model.
            pipelines: Pipelines of the schedule (default: 1).
        """
        self.seat = Seat.of(comm.Get_rank(), comm.Get_size(), partitions, replicas)
        self.comm = comm.Dup()
        self.replica = self.comm.Split(self.seat.replica, self.seat.partition)
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
        for comm in (*self._owners.values(), *self.forward, *self.backward, self.replica, self.comm):
            comm.Free()
        self._owners.clear()


def wait(request: Any) -> None:
    """Wait for a request: poll often at first, then sleep for times that grow with the time waited."""
    if request.Test():
        return
    begin = time.perf_counter()
    while not request.Test():
        waited = time.perf_counter() - begin
        if waited > _SPIN_SECONDS:
            time.sleep(min(max(_SHORTEST_NAP, waited / 100), _LONGEST_NAP))
