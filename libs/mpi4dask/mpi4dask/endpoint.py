"""The state that the connections of one event loop share: settings, token and, with MPI, the progress engine."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref

from mpi4dask import authentication, configuration, gpu
from mpi4dask.authentication import HAS_GPU, SPINS, WANTS_MPI, ClientHandshake, Handshake, Hello, ServerHandshake
from mpi4dask.buffers import Pool
from mpi4dask.engine import Engine
from mpi4dask.link import Link
from mpi4dask.world import World

logger = logging.getLogger("mpi4dask")

_NO_JOB = bytes(16)


class Endpoint:
    """Factory for the connections of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, world: World | None) -> None:
        self.loop = loop
        self.world = world
        self.settings = configuration.load()
        self.engine = self._make_engine(world)
        self._job = world.job if world is not None else _NO_JOB
        self._rank = world.rank if world is not None else -1
        self._pool = self.engine.pool if self.engine is not None else Pool(self.settings.buffer_pool)

    def link(self, handshake_class: type[Handshake], may_use_mpi: bool) -> Link:
        """Create this end of a new connection, before its socket exists."""
        engine = self.engine if may_use_mpi else None
        hello = self._hello(engine)
        token = authentication.process_token()
        handshake = handshake_class(token, hello, self.settings.handshake_timeout)
        return Link(self.loop, handshake, engine, self._pool)

    def client(self, may_use_mpi: bool) -> Link:
        """Create the end that connects."""
        return self.link(ClientHandshake, may_use_mpi)

    def server(self, may_use_mpi: bool) -> Link:
        """Create the end that listens."""
        return self.link(ServerHandshake, may_use_mpi)

    def close(self, *, tell: bool) -> None:
        """Release the loop's MPI resources. If ``tell``, notify the engines that it talked to."""
        if self.engine is not None:
            self.engine.close(tell=tell)

    def _make_engine(self, world: World | None) -> Engine | None:
        if world is None or not self.settings.use_mpi:
            return None
        tag = world.take_engine_tag()
        if tag is None:
            logger.info("All engine tags are in use: this loop's mpi:// connections use sockets only")
            return None
        return Engine(world, tag, self.loop, self.settings)

    def _hello(self, engine: Engine | None) -> Hello:
        flags = HAS_GPU if self.settings.use_cuda and gpu.library() else 0
        if engine is not None:
            flags |= WANTS_MPI | (SPINS if engine.spin else 0)
        return Hello(
            flags=flags,
            nonce=authentication.fresh_nonce(),
            job=self._job,
            engine=engine.uid if engine is not None else 0,
            rank=self._rank,
            tag=engine.tag if engine is not None else -1,
            eager_size=self.settings.eager_size,
            channel=engine.new_number() if engine is not None else 0,
        )


_lock = threading.Lock()
_world: World | None = None
_endpoints: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Endpoint] = weakref.WeakKeyDictionary()


def use_world(world: World | None) -> None:
    """Set the MPI world that endpoints created from now on use."""
    global _world  # noqa: PLW0603 - one MPI world per process, as MPI has it
    with _lock:
        _world = world


def current_world() -> World | None:
    """Return the MPI world of this process's endpoints."""
    return _world


def endpoint() -> Endpoint:
    """Return the endpoint of the running loop, creating it on first use."""
    loop = asyncio.get_running_loop()
    with _lock:
        known = _endpoints.get(loop)
        if known is None or known.world is not _world:  # the ranks may have joined since
            for other in [other for other in _endpoints if other.is_closed()]:
                _endpoints.pop(other).close(tell=True)
            known = _endpoints[loop] = Endpoint(loop, _world)
        return known


def close_all() -> None:
    """Close all endpoints of this process before MPI ends. This happens on all ranks, so peers are not notified."""
    with _lock:
        for loop in list(_endpoints):
            _endpoints.pop(loop).close(tell=False)
