"""The two kinds of groups that torch accepts from outside: ``Backend`` from 2.14 on, ``ProcessGroup`` before."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from mpi4c10d import world
from mpi4c10d.collectives import Collectives


class MPIProcessGroup(Collectives, dist.ProcessGroup):
    """A group for torch up to 2.13, where a Python class replaces the whole process group."""

    group_name = group_desc = ""  # torch keeps them in a group's backends; this group has no backend

    def __init__(self, rank: int, size: int, backend: str) -> None:
        dist.ProcessGroup.__init__(self, rank, size)
        self._backend = backend

    def getBackendName(self) -> str:
        return self._backend

    def name(self) -> str:
        return self._backend

    def setGroupName(self, name: str) -> None:
        self.group_name = name

    def getGroupName(self) -> str:
        return self.group_name

    def setGroupDesc(self, description: str) -> None:
        self.group_desc = description

    def getGroupDesc(self) -> str:
        return self.group_desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> MPIProcessGroup:
        return self

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return True


@functools.cache
def _backend_class() -> type[Collectives]:
    """Return the class for torch 2.14 and later, whose ``Backend`` can be subclassed."""

    class MPIBackend(Collectives, Backend):
        """A backend that torch's own process group calls."""

        def __init__(self, rank: int, size: int, backend: str) -> None:
            Backend.__init__(self, rank, size)
            self._backend = backend

        def getBackendName(self) -> str:
            return self._backend

        @property
        def supports_splitting(self) -> bool:
            return False

        @property
        def supports_coalescing(self) -> bool:
            return True

        def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
            timeout = opts if isinstance(opts, timedelta) else getattr(opts, "timeout", None)
            super().monitored_barrier(timeout, wait_all_ranks)

    return MPIBackend


def group_class() -> type[Any]:
    """Return the class of groups for this torch."""
    try:
        Backend(0, 1)
    except TypeError:  # before 2.14, torch defines no constructor
        return MPIProcessGroup
    return _backend_class()


def create(backend: str, options: Any) -> Any:
    """Create the group that torch describes.

    Args:
        backend: the name by which it was requested.
        options: ``c10d::DistributedBackendOptions``.
    """
    ranks, rank, size = list(options.global_ranks_in_group), options.group_rank, options.group_size
    seconds = options.timeout.total_seconds()
    if not ranks:
        whole = world.get(rank, size, seconds)
        whole.inits += 1
        ranks = list(range(size))
        communicator = world.within(seconds, "creation of the default group", whole.communicator.Dup)
    else:
        whole = world.existing()
        communicator = whole.subgroup(ranks, str(options.group_id), seconds)
    group = group_class()(rank, size, backend)
    group.setup(
        world=whole,
        communicator=communicator,
        ranks=ranks,
        name=str(options.group_id),
        timeout=options.timeout,
        store=options.store,
    )
    return group
