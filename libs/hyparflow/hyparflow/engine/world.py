"""Who computes what: the ranks of a training, and the communicators between them.

World rank = replica * partitions + partition. Forward tensors and backward gradients travel on communicators of
their own, one pair per replica and pipeline, so that no message of one kind can be taken for one of another.

Waiting for MPI without taking a core from who computes.

MPI's own waiting spins. That costs nothing where a rank has a core to itself and waits for microseconds; where ranks
share cores, or other threads of the process load the next batch, it takes their time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hyparflow.errors import WorldError

#: Create_group asks for a tag of its own on the communicator.
_GROUP_TAG = 1000
_SPIN_SECONDS = 500e-6
_SHORTEST_NAP, _LONGEST_NAP = 50e-6, 2e-3  # seconds


@dataclass(frozen=True)
class Seat:
    """Where a rank stands in a training of ``replicas`` x ``partitions`` ranks."""

    partitions: int
    replicas: int
    replica: int
    partition: int

    @classmethod
    def of(cls, rank: int, size: int, partitions: int, replicas: int) -> Seat:
        """The seat of world rank ``rank``; raises WorldError where ``size`` is not partitions * replicas."""
        if size != partitions * replicas:
            needed = f"{partitions} partitions x {replicas} replicas need {partitions * replicas} ranks"
            raise WorldError(f"{needed}, and {size} were started: start as many, or request another plan")
        return cls(partitions, replicas, *divmod(rank, partitions))

    def ranks(self, partitions: Iterable[int]) -> list[int]:
        """The world ranks, in order, that stand at these partitions in any replica."""
        wanted = sorted(set(partitions))
        return [replica * self.partitions + each for replica in range(self.replicas) for each in wanted]


class World:
    """The communicators of one rank. Making it is collective over ``comm``; so is ``close``.

    ``comm``        all ranks of the training (a duplicate: nothing else travels on it)
    ``replica``     the ranks of this replica, in order of partitions
    ``forward[k]``  the replica's ranks, for the tensors of pipeline k
    ``backward[k]`` the same, for the gradients that go back
    """

    def __init__(self, comm: Any, partitions: int, replicas: int, pipelines: int = 1) -> None:
        """``comm``: mpi4py's communicator of exactly partitions * replicas ranks."""
        self.seat = Seat.of(comm.Get_rank(), comm.Get_size(), partitions, replicas)
        self.comm = comm.Dup()
        self.replica = self.comm.Split(self.seat.replica, self.seat.partition)
        self.forward = tuple(self.replica.Dup() for _ in range(pipelines))
        self.backward = tuple(self.replica.Dup() for _ in range(pipelines))
        self._owners: dict[tuple[bool, tuple[int, ...]], Any] = {}

    def owners(self, partitions: Iterable[int], *, all_replicas: bool = True) -> Any:
        """The communicator of the ranks at these partitions, this rank's among them: in all replicas, or in its own.

        Collective over those ranks. It is made once for a set of partitions: every rank must first ask for its sets in
        the order of ``sorted(sets)``, so that no two ranks wait for each other.
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
        """Give the communicators back."""
        for comm in (*self._owners.values(), *self.forward, *self.backward, self.replica, self.comm):
            comm.Free()
        self._owners.clear()


def wait(request: Any) -> None:
    """Return when the request is complete: look often at first, then with naps that grow with the time waited."""
    if request.Test():
        return
    begin = time.perf_counter()
    while not request.Test():
        waited = time.perf_counter() - begin
        if waited > _SPIN_SECONDS:
            time.sleep(min(max(_SHORTEST_NAP, waited / 100), _LONGEST_NAP))
