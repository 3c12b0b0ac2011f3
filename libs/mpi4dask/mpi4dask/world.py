"""This process's place in the MPI job: the duplicated communicator, its tags, and whether polling pays here."""

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

ENGINE_TAGS = 1024  # tags below this one are engines' envelopes, those from it on are large transfers
_GUARANTEED_TAG = 32767  # the least upper bound that the MPI standard grants

Cores = tuple[str, tuple[int, ...]]  # a node, and the cores that a rank may use there


class World:
    """One per process, made by `join()`. Tags are handed out and taken back; none is used twice at a time."""

    def __init__(self, comm: Any, job: bytes, polling_pays: bool, places: dict[int, memory.Place]) -> None:
        self.comm = comm
        self.places = places  # of the ranks whose memory this one can read
        self.rank: int = comm.Get_rank()
        self.job = job
        self.polling_pays = polling_pays
        self._lock = threading.Lock()
        self._engine_tags = deque(range(ENGINE_TAGS))
        self._transfer_tags = deque(range(ENGINE_TAGS, _GUARANTEED_TAG + 1))

    def take_engine_tag(self) -> int | None:
        """A tag for the envelopes of one engine; None where all are taken."""
        with self._lock:
            return self._engine_tags.popleft() if self._engine_tags else None

    def give_engine_tag(self, tag: int) -> None:
        """Take back an engine's tag; the least recently used one is handed out next."""
        with self._lock:
            self._engine_tags.append(tag)

    def take_transfer_tag(self) -> int | None:
        """A tag for one large transfer to this process; None where all are in use."""
        with self._lock:
            return self._transfer_tags.popleft() if self._transfer_tags else None

    def give_transfer_tag(self, tag: int) -> None:
        """Take back the tag of a transfer whose last byte has arrived."""
        with self._lock:
            self._transfer_tags.append(tag)

    @property
    def free_transfer_tags(self) -> int:
        """How many large transfers could start now."""
        return len(self._transfer_tags)


def join(comm: Any, token_file: str | None, use_direct: bool) -> World:
    """Duplicate `comm` and agree on a job and its token: rank 0's, where somebody gave it one (see `process_token`).

    With `use_direct`, learn whose memory can be read, and let others read this rank's. Collective: every rank of `comm`
    calls it. Raise ConfigurationError on all ranks where rank 0's token is refused.
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
            logger.info("The memory of ranks on this node cannot be read: their large frames go through MPI")
    return World(duplicate, job, polling_pays(here, everyone), readable)


def polling_pays(here: Cores, everyone: Sequence[Cores]) -> bool:
    """Whether each rank that may run on this rank's cores has a core to itself.

    A rank counts on each core of its own with one over their number.
    """
    node, cores = here
    mine = set(cores)
    load = sum(len(mine & set(theirs)) / len(theirs) for where, theirs in everyone if where == node)
    return load <= len(mine) + 1e-9


def write_token(path: Path, token: str) -> None:
    """Put the token where programs outside the job find it, readable by this user only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    beside.replace(path)


def _node() -> str:
    try:  # containers may share a host's name; a boot has one id per kernel
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"
