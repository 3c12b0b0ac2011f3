"""The backend that `distributed` loads for addresses mpi://host:port."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

import dask.config
from dask.utils import parse_timedelta
from distributed.comm import CommClosedError
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, Comm, Connector, FatalCommClosedError
from distributed.comm.registry import Backend
from distributed.comm.utils import ensure_concrete_host
from distributed.utils import ensure_ip, get_ip

from mpi4dask import authentication, endpoint
from mpi4dask.comm import MPIComm
from mpi4dask.counters import counters
from mpi4dask.link import Link
from mpi4dask.transport import begin_to_join, joined

logger = logging.getLogger("mpi4dask")

PREFIX = "mpi://"
_PROBES = 10


def _tls_context(connection_args: dict[str, Any]) -> ssl.SSLContext | None:
    """Return the TLS context of distributed's security settings; raise RuntimeError if it is required but missing."""
    context = connection_args.get("ssl_context")
    if context is not None and not isinstance(context, ssl.SSLContext):
        raise TypeError(f"mpi:// expects an ssl.SSLContext as ssl_context, got {context!r}")
    if context is None and connection_args.get("require_encryption"):
        raise RuntimeError("encryption required by Dask configuration, but mpi:// was given no TLS certificates")
    return context


def _may_use_mpi(connection_args: dict[str, Any]) -> bool:
    """Return whether MPI may carry the data. MPI does not encrypt, which require-encryption rules out."""
    return not connection_args.get("require_encryption")


def _log_transport(link: Link, peer: str) -> None:
    if link.engine is None:
        logger.info("mpi:// connection with %s: data over the socket (no MPI job in common)", peer)
    else:
        logger.debug("mpi:// connection with %s: data over MPI, rank %d", peer, link.handshake.remote_rank)


class MPIConnector(Connector):
    """Connector for mpi:// addresses."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Comm:
        """Connect to host:port; raise CommClosedError if no process listens there or authentication fails."""
        context = _tls_context(connection_args)
        host, port = parse_host_port(address)
        loop = asyncio.get_running_loop()
        await joined()
        link = endpoint.endpoint().client(_may_use_mpi(connection_args))
        server_hostname = (connection_args.get("server_hostname") or host) if context is not None else None
        try:
            transport, _ = await loop.create_connection(
                lambda: link, host, port, ssl=context, server_hostname=server_hostname
            )
            set_options(transport)
            await link.established
        except ssl.SSLError as exc:
            link.abort()
            if isinstance(exc, ssl.SSLCertVerificationError) or "UNKNOWN_CA" in (exc.reason or ""):
                raise FatalCommClosedError(f"TLS with {address} failed; check the security settings: {exc}") from exc
            raise CommClosedError(f"TLS with {address} failed: {exc}") from exc
        except CommClosedError:
            link.abort()
            raise
        except OSError as exc:
            link.abort()
            raise CommClosedError(f"cannot connect to {PREFIX}{address}: {exc}") from exc
        except BaseException:
            link.abort()
            raise
        local = unparse_host_port(*transport.get_extra_info("sockname")[:2])
        _log_transport(link, address)
        return MPIComm(link, PREFIX + local, PREFIX + address, deserialize)


class MPIListener(BaseListener):
    """Listener that accepts authenticated peers and passes their comms on."""

    prefix = PREFIX

    def __init__(  # noqa: PLR0917 - as distributed's own listeners
        self,
        address: str,
        handle_comm: Callable[[Comm], Any],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        super().__init__()
        self._context = _tls_context(connection_args)
        self._use_mpi = _may_use_mpi(connection_args)
        self.ip, self.port = parse_host_port(address, default_port)
        self.default_host = default_host
        self.handle_comm = handle_comm
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshaking: set[Link] = set()

    async def start(self) -> None:
        """Bind the socket; raise OSError if the address is in use, ConfigurationError if the token is too weak."""
        authentication.process_token()
        backlog = int(dask.config.get("distributed.comm.socket-backlog"))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._accept, self.ip or None, self.port, backlog=backlog, ssl=self._context
        )
        sockets = sorted(self._server.sockets, key=lambda one: one.family)  # IPv4 first
        self._bound = sockets[0].getsockname()[:2]

    def stop(self) -> None:
        """Stop accepting connections; keep established ones."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for link in list(self._handshaking):
            link.abort()

    def _accept(self) -> Link:
        link = endpoint.endpoint().server(self._use_mpi)
        task = asyncio.ensure_future(self._welcome(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return link

    async def _welcome(self, link: Link) -> None:
        self._handshaking.add(link)
        try:
            await link.established
        except CommClosedError as exc:
            counters.handshakes_refused += 1
            logger.info("Rejected a connection: %s", exc)
            return
        finally:
            self._handshaking.discard(link)
        if self._server is None:
            link.abort()
            return
        set_options(link.transport)
        peer = PREFIX + unparse_host_port(*link.transport.get_extra_info("peername")[:2])
        local = PREFIX + unparse_host_port(*link.transport.get_extra_info("sockname")[:2])
        _log_transport(link, peer)
        comm = MPIComm(link, local, peer, self.deserialize)
        comm.allow_offload = self.allow_offload
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("Connection from %s closed before distributed's handshake was complete", peer)
            return
        result = self.handle_comm(comm)
        if asyncio.iscoroutine(result) or isinstance(result, asyncio.Future):
            await result

    def get_host_port(self) -> tuple[str, int]:
        """Return the address that the socket is bound to."""
        if self._server is None:
            raise ValueError("invalid operation on non-started MPIListener")
        return self._bound

    @property
    def listen_address(self) -> str:
        return PREFIX + unparse_host_port(*self.get_host_port())

    @property
    def contact_address(self) -> str:
        host, port = self.get_host_port()
        return PREFIX + unparse_host_port(ensure_concrete_host(host, default_host=self.default_host), port)


class MPIBackend(Backend):
    """Backend for mpi://host:port. Loading it does not load MPI; see `mpi4dask.transport.start`."""

    def get_connector(self) -> MPIConnector:
        begin_to_join()
        return MPIConnector()

    def get_listener(
        self, loc: str, handle_comm: Callable[[Comm], Any], deserialize: bool, **connection_args: Any
    ) -> MPIListener:
        begin_to_join()
        return MPIListener(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        return str(parse_host_port(loc)[0])

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        host, port = parse_host_port(loc)
        return str(host), int(port)

    def resolve_address(self, loc: str) -> str:
        host, port = parse_host_port(loc)
        return str(unparse_host_port(ensure_ip(host), port))

    def get_local_address_for(self, loc: str) -> str:
        host, _ = parse_host_port(loc)
        return str(unparse_host_port(get_ip(ensure_ip(host)), None))


def set_options(transport: asyncio.BaseTransport) -> None:
    """Set TCP_NODELAY for doorbells, and keepalive according to `distributed.comm.timeouts.tcp`."""
    sock = transport.get_extra_info("socket")
    seconds = int(parse_timedelta(dask.config.get("distributed.comm.timeouts.tcp"), default="seconds"))
    idle = max(2, seconds // 4)
    interval = max(1, (seconds - idle) // _PROBES)
    options = [
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", _PROBES),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", idle),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", interval),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", seconds * 1000),
    ]
    for level, name, value in options:
        if hasattr(socket, name):
            try:
                sock.setsockopt(level, getattr(socket, name), value)
            except OSError as exc:
                logger.info("Could not set %s on a socket: %s", name, exc)
