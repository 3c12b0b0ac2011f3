"""The comm that `distributed` uses for a connection."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable
from typing import Any

from distributed.comm import CommClosedError
from distributed.comm.core import Comm

from mpi4dask.link import Link
from mpi4dask.messages import GPU_FAMILIES, from_frames, to_frames

logger = logging.getLogger("mpi4dask")


class MPIComm(Comm):
    """An authenticated connection. Its data travels over MPI, or over the socket if the ends share no MPI job.

    As with tcp://, `write` never waits for the peer, and the buffers of a message must not change before it is sent. A
    cancelled read consumes nothing: the next read returns the message.
    """

    def __init__(self, link: Link, local_addr: str, peer_addr: str, deserialize: bool = True) -> None:
        self._link = link
        self._channel = link.channel
        self._engine = link.engine
        self._local_addr = local_addr
        self._peer_addr = peer_addr
        self._closed = False
        super().__init__(deserialize=deserialize)
        self._families = GPU_FAMILIES if link.handshake.gpu_frames else None
        self._finalizer = weakref.finalize(self, _abandon, link, f"{local_addr} to {peer_addr}")
        self._finalizer.atexit = False

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    @property
    def extra_info(self) -> dict[str, Any]:
        """The carrier of the data: {"transport": "mpi" or "socket", ...} and, with TLS, the peer's certificate."""
        info: dict[str, Any] = {"transport": "mpi" if self._engine is not None else "socket"}
        cipher = self._link.transport.get_extra_info("cipher")
        if cipher is not None:
            info.update(cipher=cipher, peercert=self._link.transport.get_extra_info("peercert"))
        return info

    async def read(self, deserializers: Any = None) -> Any:
        """Return the next message; raise CommClosedError if there will be none."""
        channel = self._channel
        message = channel.first()
        while message is None:
            self._check_open()
            if self._engine is not None:
                self._engine.spin_for(channel)
            if not channel.ready:
                await channel.wait()
            message = channel.first()
        assert message.frames is not None
        try:
            result = await from_frames(
                message.frames,
                deserialize=self.deserialize,
                deserializers=deserializers or self._families,
                allow_offload=self.allow_offload,
            )
        except EOFError:
            self.abort()
            raise CommClosedError("aborted: the message was truncated") from None
        except asyncio.CancelledError:
            raise  # the message stays first in the inbox
        except BaseException:
            self._forget(message)
            raise
        self._forget(message)
        return result

    def _forget(self, message: Any) -> None:
        if self._channel.first() is message:  # false if the connection was aborted in the meantime
            self._channel.pop()

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        """Send a message and return its size in bytes; raise CommClosedError if the connection is closed."""
        self._check_writable()
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers or self._families,
            on_error=on_error,
            context={"sender": self.local_info, "recipient": self.remote_info, **self.handshake_options},
            packers=self._link.pool.packers,
        )
        self._check_writable()
        link = self._link
        if self._engine is not None and link.peer is not None:
            return self._engine.send(link.peer, self._channel, link.handshake.remote_channel, frames)
        return link.send(frames)

    def _check_open(self) -> None:
        if self._closed:
            raise CommClosedError(f"in {self}: this end is closed")
        if self._channel.ended is not None:
            reason = self._channel.ended
            self._end()
            raise CommClosedError(f"in {self}: {reason}") from reason

    def _check_writable(self) -> None:
        if self._closed or self._channel.ended is not None:
            raise CommClosedError(f"in {self}: {self._channel.ended or 'this end is closed'}")

    async def close(self) -> None:
        """Send pending messages, notify the peer, and close the connection."""
        if not self._closed:
            self._end(hang_up=False)
            await self._link.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if not self._closed:
            self._end()

    def _end(self, hang_up: bool = True) -> None:
        self._closed = True
        self._finalizer.detach()
        self._channel.wake()
        if hang_up:
            self._link.abort()

    def closed(self) -> bool:
        """Return whether reading and writing are no longer possible."""
        return self._closed or (self._channel.ended is not None and self._channel.first() is None)


def _abandon(link: Link, name: str) -> None:
    """Close the connection of a comm that was garbage-collected while open, possibly in another thread."""
    hang_up: Callable[[], None] = link.abort
    if not link.loop.is_closed():
        level = logging.WARNING if link.channel.ended is None else logging.DEBUG  # no harm if the peer has closed it
        logger.log(level, "Closing an abandoned connection: %s", name)
        link.loop.call_soon_threadsafe(hang_up)
