"""This process in the MPI job: the duplicated communicator, its tags, and whether polling is worthwhile."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpi4dask import authentication, memory
from mpi4dask.errors import ConfigurationError

logger = logging.getLogger("mpi4dask")

ENGINE_TAGS = 1024  # lower tags are for engines' envelopes, the others for large transfers
_GUARANTEED_TAG = 32767  # the lowest upper bound that the MPI standard guarantees

Cores = tuple[str, tuple[int, ...]]  # a node, and the cores that a rank may use there


class World:
    """The MPI job of this process, created by `join()`. A tag is never used twice at the same time."""

    def __init__(self, comm: Any, job: bytes, polling_pays: bool, places: dict[int, memory.Place]) -> None:
        self.comm = comm
        self.places = places  # of the ranks whose memory this rank can read
        self.rank: int = comm.Get_rank()
        self.job = job
        self.polling_pays = polling_pays
        self._lock = threading.Lock()
        self._engine_tags = deque(range(ENGINE_TAGS))
        self._transfer_tags = deque(range(ENGINE_TAGS, _GUARANTEED_TAG + 1))

    def take_engine_tag(self) -> int | None:
        """Reserve a tag for the envelopes of an engine; return None if all are in use."""
        with self._lock:
            return self._engine_tags.popleft() if self._engine_tags else None

    def give_engine_tag(self, tag: int) -> None:
        """Return an engine's tag; the least recently used one is reserved next."""
        with self._lock:
            self._engine_tags.append(tag)

    def take_transfer_tag(self) -> int | None:
        """Reserve a tag for a large transfer to this process; return None if all are in use."""
        with self._lock:
            return self._transfer_tags.popleft() if self._transfer_tags else None

    def give_transfer_tag(self, tag: int) -> None:
        """Return the tag of a transfer whose last byte has arrived."""
        with self._lock:
            self._transfer_tags.append(tag)

    @property
    def free_transfer_tags(self) -> int:
        """The number of large transfers that could start now."""
        return len(self._transfer_tags)


def join(comm: Any, token_file: str | None, use_direct: bool) -> World:
    """Duplicate `comm`, and agree on a job and on rank 0's token (see `process_token`).

    The call is collective over `comm`.

    Args:
        comm: An mpi4py communicator.
        token_file: A file that rank 0 writes the token to, or None.
        use_direct: Let ranks on the same node read each other's memory if possible.

    Raises:
        ConfigurationError: Rank 0's token is invalid; raised on all ranks.
    """
    duplicate = comm.Dup()
    secret: Any = None
    if comm.Get_rank() == 0:
        try:
            secret = secrets.token_bytes(16), authentication.process_token().decode()
        except ConfigurationError as error:
            secret = error
    secret = duplicate.bcast(secret, root=0)
    if isinstance(secret, ConfigurationError):
        duplicate.Free()
        raise secret
    job, token = secret
    authentication.set_process_token(token)
    if token_file and comm.Get_rank() == 0:
        write_token(Path(token_file), token)
    here = (_node(), tuple(sorted(os.sched_getaffinity(0))))
    if use_direct:
        memory.allow()
    places, everyone = zip(*duplicate.allgather((memory.place() if use_direct else None, here)), strict=True)
    readable = {}
    if use_direct:
        shown = {rank: place for rank, place in enumerate(places) if place and everyone[rank][0] == here[0]}
        readable = {rank: place for rank, place in shown.items() if memory.neighbour(place) is not None}
        if len(readable) < len(shown):
            logger.info("Cannot read the memory of some ranks on this node: their large frames use MPI")
    return World(duplicate, job, polling_pays(here, everyone), readable)


def polling_pays(here: Cores, everyone: Sequence[Cores]) -> bool:
    """Return whether each rank that may run on this rank's cores has a core to itself.

    A rank counts on each of its cores with one divided by their number.
    """
    node, cores = here
    mine = set(cores)
    load = sum(len(mine & set(theirs)) / len(theirs) for where, theirs in everyone if where == node)
    return load <= len(mine) + 1e-9


def write_token(path: Path, token: str) -> None:
    """Write the token to a file for programs outside the job, readable by this user only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    beside.replace(path)


def _node() -> str:
    try:  # containers may share a host name; the boot id is unique per kernel
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"
