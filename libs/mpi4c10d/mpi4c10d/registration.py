"""Registration with torch: the backend's names, the rendezvous of MPI's ranks, ``monitored_barrier``."""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mpi4c10d import launcher

NAME = "mpi4c10d"
_DEVICES = ["cpu", "cuda"]


class _Name(str):
    """The backend name ``mpi`` as plug-ins have names.

    torch compares a backend with ``Backend.MPI`` to choose the MPI of its own build, which has no store and no ranks
    before it starts. This name differs from itself in such a comparison, and is otherwise the string.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return not isinstance(other, _Name) and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def register() -> None:
    """Register the backend under its names, and read the launcher's variables. A second call changes nothing."""
    if not dist.is_available() or NAME.upper() in dist.Backend._plugins:
        return
    c10d = dist.distributed_c10d
    names = [NAME] if c10d._MPI_AVAILABLE else [NAME, "mpi"]  # a torch that was built with MPI keeps its own
    for name in names:
        dist.Backend.register_backend(name, functools.partial(_create, name), extended_api=True, devices=_DEVICES)
    if "mpi" in names:
        dist.Backend.MPI = _Name("mpi")
        c10d._MPI_AVAILABLE = True
    launcher.export()
    _replace_rendezvous()
    _replace_monitored_barrier(c10d)
    _replace_recv(c10d)


def _create(name: str, options: Any, _: Any) -> Any:
    if launcher.under_torchrun():
        raise RuntimeError(
            f"backend {name}: torchrun starts processes that are no MPI ranks"
            f"\nhint: start the program with: {launcher.command(options.group_size)}"
        )
    from mpi4c10d import dynamo, process_group  # imports mpi4py.MPI, which initializes MPI

    dynamo.hide()
    return process_group.create(name, options)


def _replace_rendezvous() -> None:
    """Complete ``env://``: under an MPI launcher, MPI chooses MASTER_ADDR and MASTER_PORT if the address is not set.

    accelerate sets the port alone, always the same one, which another job on the host may have taken.
    """
    from torch.distributed.rendezvous import _rendezvous_handlers

    handler = _rendezvous_handlers["env"]

    def rendezvous(url: str, timeout: timedelta = timedelta(minutes=5), **options: Any) -> Any:
        if launcher.world() is not None and "MASTER_ADDR" not in os.environ:
            from mpi4c10d import world  # initializes MPI

            world.set_master(timeout.total_seconds())
        yield from handler(url, timeout=timeout, **options)

    _rendezvous_handlers["env"] = rendezvous


def _replace_monitored_barrier(c10d: Any) -> None:
    """Extend ``monitored_barrier``, which torch restricts to the name gloo."""
    original = c10d.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        ours = _ours(c10d, group)
        if ours is None:
            return original(group, timeout, wait_all_ranks)
        return ours.monitored_barrier(timeout, wait_all_ranks)

    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier


def _replace_recv(c10d: Any) -> None:
    """Extend ``recv`` from any rank: from 2.14 on, torch does not ask a work in Python for the sender."""
    original = c10d.recv

    @functools.wraps(original)
    def recv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
        ours = _ours(c10d, group) if src is None and group_src is None else None
        if ours is None:
            return int(original(tensor, src, group, tag, group_src))
        work = ours.recv_anysource([tensor], tag)
        work.wait()
        return int(dist.get_global_rank(group or dist.group.WORLD, work.source_rank()))

    c10d.recv = dist.recv = recv


def _ours(c10d: Any, group: Any) -> Any:
    """Return the group, or its backend, if it is this library's."""
    if c10d._rank_not_in_group(group) or str(dist.get_backend(group)) not in (NAME, "mpi"):
        return None
    pg = group or dist.group.WORLD
    if not hasattr(pg, "failures"):  # torch's own group, which calls the backend
        pg = pg._get_backend(torch.device("cpu"))
    return pg if hasattr(pg, "failures") else None
