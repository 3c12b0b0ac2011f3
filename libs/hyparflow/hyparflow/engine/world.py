"""Who computes what: the ranks of a training, and the communicators between them.

World rank = replica * partitions + partition. Forward tensors and backward gradients travel on communicators of
their own, one pair per replica and pipeline, so that no message of one kind can be taken for one of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hyparflow.errors import WorldError

#: Tags of Create_group begin here, one per set of partitions.
_GROUP_TAG = 1000


def owner(stage: int, pipeline: int, partitions: int) -> int:
    """The partition that computes ``stage`` of ``pipeline``: GEMS' second pipeline lies in inverse order."""
    place = stage % partitions
    return place if pipeline == 0 else partitions - 1 - place


@dataclass(frozen=True)
class Place:
    """Where a rank stands in a training of ``replicas`` x ``partitions`` ranks."""

    partitions: int
    replicas: int
    replica: int
    partition: int

    @classmethod
    def of(cls, rank: int, size: int, partitions: int, replicas: int) -> Place:
        """The place of world rank ``rank``; raises WorldError where ``size`` is not partitions * replicas."""
        if size != partitions * replicas:
            needed = f"{partitions} partitions x {replicas} replicas need {partitions * replicas} ranks"
            raise WorldError(f"{needed}, and {size} were started: start as many, or ask for another plan")
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
        self.place = Place.of(comm.Get_rank(), comm.Get_size(), partitions, replicas)
        self.comm = comm.Dup()
        self.replica = self.comm.Split(self.place.replica, self.place.partition)
        self.forward = tuple(self.replica.Dup() for _ in range(pipelines))
        self.backward = tuple(self.replica.Dup() for _ in range(pipelines))
        self._owners: dict[tuple[int, ...], Any] = {}

    def owners(self, partitions: Iterable[int]) -> Any:
        """The communicator of all replicas' ranks at these partitions, this rank's among them; in world order.

        Collective over those ranks. It is made once for a set of partitions: every rank must first ask for its sets in
        the order of ``sorted(sets)``, so that no two ranks wait for each other.
        """
        key = tuple(sorted(set(partitions)))
        if key not in self._owners:
            group = self.comm.Get_group().Incl(self.place.ranks(key))
            self._owners[key] = self.comm.Create_group(group, _GROUP_TAG)
            group.Free()
        return self._owners[key]

    def close(self) -> None:
        """Give the communicators back."""
        for comm in (*self._owners.values(), *self.forward, *self.backward, self.replica, self.comm):
            comm.Free()
        self._owners.clear()


def owning_partitions(
    variables: Mapping[int, Iterable[str]], pipelines: int, partitions: int
) -> dict[str, tuple[int, ...]]:
    """Which partitions hold each variable, by its path, in ascending order.

    ``variables``: the paths of the trainable variables that each stage uses. A variable has several owners where a
    shared layer's calls lie on several stages, and under GEMS, where each stage is computed by two partitions.
    """
    owners: dict[str, set[int]] = {}
    for stage, paths in variables.items():
        for path in paths:
            owners.setdefault(path, set()).update(owner(stage, k, partitions) for k in range(pipelines))
    return {path: tuple(sorted(found)) for path, found in owners.items()}
