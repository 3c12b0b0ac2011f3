"""The socket of a connection: handshake, then doorbells and the goodbye or, without MPI, the messages.

Nothing that a link receives is treated as a message before the handshake is done.

To close a connection between two engines, each end says goodbye once and keeps reading until the other's goodbye
arrives. A socket that breaks off therefore means that the peer's process has died. (If the socket were closed at once,
bytes still on their way to it would make the kernel reset the connection, and the peer could see that error before the
goodbye.)
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from distributed.comm import CommClosedError

from mpi4dask import gpu, wire
from mpi4dask.authentication import HELLO_SIZE, PROOF_SIZE, SPINS, Handshake
from mpi4dask.buffers import Pool, host_block
from mpi4dask.channel import Channel, Message
from mpi4dask.counters import counters
from mpi4dask.engine import Engine
from mpi4dask.errors import HandshakeError, ProtocolError
from mpi4dask.peer import Peer

_RECORD = struct.Struct("<BIQQ")  # kind, number of frames, and two words
_RING = 1  # number of envelopes sent so far
_GOODBYE = 2  # the same; 1 if it was said before the handshake ended, when nothing had been sent over MPI
_MESSAGE = 3  # number of frames in the table; size of the packed block

_SCRATCH = 64 * 1024
# Bytes written at a time, so that little is copied if the socket does not accept all of them.
_PIECE = 1024 * 1024


class Link(asyncio.BufferedProtocol):
    """One end of a connection's socket."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handshake: Handshake, own_engine: Engine | None, pool: Pool
    ) -> None:
        self.loop = loop
        self.handshake = handshake
        self.channel = Channel(loop)
        self.established: asyncio.Future[None] = loop.create_future()
        self.transport: Any = None
        self.engine: Engine | None = None  # both are set if MPI carries the data
        self.peer: Peer | None = None
        self._own_engine = own_engine
        self.pool = pool
        self._scratch = memoryview(bytearray(HELLO_SIZE + PROOF_SIZE))
        self._have = 0
        self._take = self._take_handshake
        self._fills: deque[memoryview] = deque()  # destinations of the next bytes
        self._filled = 0
        self._then: Callable[[], None] = self._consume
        self._queue: deque[memoryview] = deque()
        self._paused = False
        self._drained: asyncio.Future[None] | None = None
        self._goodbye_said = False
        self._goodbye_heard = False
        self._hung_up = False
        self._gone = False
        self._timer = loop.call_later(handshake.timeout, self._too_late)

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.handshake.first_words())  # type: ignore[attr-defined]

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._fills:
            return self._fills[0][self._filled :]
        return self._scratch[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._fills:
                self._advance(nbytes)
            else:
                self._have += nbytes
                self._consume()
        except (HandshakeError, ProtocolError) as exc:
            self.abort(exc)
            self._hang_up()  # without waiting for the peer's goodbye

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        counters.connections_closed += self.handshake.done
        reason = CommClosedError(f"connection lost: {exc}" if exc else "the peer closed the connection")
        lost = self.established.done() and not self._goodbye_heard
        self._fail_handshake(HandshakeError(f"the peer closed the connection during the handshake: {exc}"))
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self.engine is None or self.peer is None:
            self.channel.end(reason)
            return
        self.peer.drop_link(self)
        self.engine.part(self.peer)
        if self.channel.closed:
            return
        if self._goodbye_heard:
            self.engine.wake()
        else:
            self.channel.end(reason)
        if lost:
            self.engine.lose(self.peer)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    # Handshake

    def _take_handshake(self) -> int:
        size = self.handshake.awaited
        if self._have < size:
            return 0
        words = self.handshake.hear(bytes(self._scratch[:size]))
        joins = self.handshake.verified and self.handshake.over_mpi and self.peer is None
        if joins:
            self._join_peer()  # before the other end learns that it may send
        if words:
            self.transport.write(words)
        if joins and self.peer is not None:
            self.peer.add_link(self)  # may ring its doorbell at once, after the reply
        if self.handshake.done:
            self._establish()
        return size

    def _establish(self) -> None:
        self._timer.cancel()
        handshake = self.handshake
        self._take = self._take_record
        heard = self._scratch[: self._have]
        self._scratch = memoryview(bytearray(4096 if handshake.over_mpi else _SCRATCH))
        self._scratch[: len(heard)] = heard
        counters.connections_opened += 1
        if not self.established.done():
            self.established.set_result(None)

    def _join_peer(self) -> None:
        engine, other = self._own_engine, self.handshake.other
        assert engine is not None
        self.engine = engine
        self.peer = engine.meet(other.engine, other.rank, other.tag, other.eager_size, bool(other.flags & SPINS))
        self.channel.on_quiet = self._part
        engine.open_channel(self.handshake.channel, self.channel)

    def _too_late(self) -> None:
        self.abort(HandshakeError(f"the peer did not authenticate within {self.handshake.timeout:g} s"))

    def _fail_handshake(self, exc: CommClosedError) -> None:
        self._timer.cancel()
        if not self.established.done():
            self.established.set_exception(exc)
            # Mark the exception as retrieved, because failed incoming connections are only logged.
            self.established.exception()

    # Records

    def _consume(self) -> None:
        """Process complete records at the front of the scratch buffer, and move the rest to the front."""
        while not self._gone:
            if self._fills:
                rest = self._fills[0][self._filled :]
                used = min(len(rest), self._have)
                rest[:used] = self._scratch[:used]
                self._drop_front(used)
                self._advance(used)
                used = used if self._have or not self._fills else 0
            else:
                used = self._take()
                self._drop_front(used)
            if not used:
                return

    def _drop_front(self, used: int) -> None:
        rest = self._have - used
        if used and rest:
            self._scratch[:rest] = bytes(self._scratch[used : self._have])
        self._have = rest

    def _fill(self, buffers: list[memoryview], then: Callable[[], None]) -> None:
        """Receive the next bytes directly into these buffers, then call `then`."""
        self._fills = deque(buffer for buffer in buffers if len(buffer))
        self._filled = 0
        self._then = then
        if not self._fills:
            then()

    def _advance(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == len(self._fills[0]):
            self._fills.popleft()
            self._filled = 0
            if not self._fills:
                self._then()

    def _take_record(self) -> int:
        if self._have < _RECORD.size:
            return 0
        kind, nframes, first, second = _RECORD.unpack_from(self._scratch)
        if kind == _MESSAGE and self.engine is None:
            return self._take_message(nframes, first)
        if kind == _RING and self.engine is not None and self.peer is not None:
            self.engine.rung(self.peer, first)
        elif kind == _GOODBYE:
            self._hear_goodbye(first, early=bool(second))
        else:
            raise ProtocolError(f"unknown record {kind} on the socket")
        return _RECORD.size

    def _hear_goodbye(self, sent: int, early: bool) -> None:
        self._goodbye_heard = True
        self.channel.unheard()
        # The peer's end-of-channel record may have arrived over MPI before the inbox was open.
        if self.engine is None or early:
            self.channel.end(CommClosedError("the peer closed the connection"))
        if self.engine is not None and self.peer is not None:
            self.engine.rung(self.peer, sent)
            self._part()

    def _part(self) -> None:
        """Close the socket once the peer has said goodbye and neither end has more to send over this link."""
        channel = self.channel
        if self._goodbye_heard and (channel.closed or (channel.ended is not None and not channel.outgoing)):
            self._say_goodbye()
            self._hang_up()

    def _take_message(self, nframes: int, packed_size: int) -> int:
        block = host_block(packed_size, self.pool)

        def have_block() -> None:
            if nframes == 0:
                self._arrived([block], packed_size)
                return
            entries = wire.read_table(block, nframes)
            alone = [host_block(entry.size, self.pool) for entry in entries if entry.is_alone]
            size = sum(entry.size for entry in entries)
            self._fill(alone, lambda: self._arrived(wire.assemble(block, entries, alone), size))

        self._fill([block], have_block)
        return _RECORD.size

    def _arrived(self, frames: list[Any], size: int) -> None:
        counters.messages_received += 1
        counters.bytes_received += size
        counters.socket_bytes_received += size
        self.channel.announce(Message(size, frames))

    # Writing

    def ring(self, sent: int) -> None:
        """Ring the doorbell without waiting; the transport buffers what the socket does not accept.

        If the peer has closed the socket, `connection_lost` follows, and `Peer.drop_link` rings over another link.
        """
        if not self.transport.is_closing():
            self.transport.write(_RECORD.pack(_RING, 0, sent, 0))

    def send(self, frames: list[Any]) -> int:
        """Send a message over the socket without waiting, and return its size in bytes."""
        layout = wire.lay_out(frames, _SCRATCH)
        head = _RECORD.pack(_MESSAGE, layout.nframes, layout.packed_size, 0)
        self._put(b"".join((head, *layout.packed)))
        for frame in layout.alone:
            self._put(gpu.to_host(frame) if wire.is_cuda(frame) else frame)
        counters.messages_sent += 1
        counters.bytes_sent += layout.size
        counters.socket_bytes_sent += layout.size
        return layout.size

    def _put(self, data: Any) -> None:
        if not self._queue and not self._paused and len(data) <= _PIECE:
            self.transport.write(data)
        else:
            self._queue.append(memoryview(data))
            self._pump()

    def _pump(self) -> None:
        while self._queue and not self._paused and not self._gone:
            data = self._queue[0]
            self.transport.write(data[:_PIECE])
            if len(data) > _PIECE:
                self._queue[0] = data[_PIECE:]
            else:
                self._queue.popleft()
        if not self._queue and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # Shutdown

    async def close(self) -> None:
        """Send pending data, say goodbye, and close the socket."""
        if self._gone:
            self._leave()
            return
        if self.engine is not None:
            await self.channel.flushed()
        elif self._queue:
            self._drained = self.loop.create_future()
            await self._drained
        self._leave()

    def abort(self, reason: CommClosedError | None = None) -> None:
        """Close the socket at once. Data already requested over MPI is still sent, but not read."""
        self._fail_handshake(reason or HandshakeError("the connection was aborted"))
        if reason is not None:
            self.channel.end(reason)
        self._leave()

    def peer_died(self) -> None:
        """Close the link because another connection found that the peer's process has died."""
        self.channel.end(CommClosedError("the peer's process has died"))
        self._hang_up()

    def _leave(self) -> None:
        """Tell the peer that this end is closed: over MPI after all messages, and over the socket."""
        if self.channel.closed:
            return
        self.channel.drop()
        if self.engine is not None and self.peer is not None:
            self.engine.close_channel(self.handshake.channel)
            self.engine.send_close(self.peer, self.handshake.remote_channel)
        if self._gone or self.transport is None or not self.handshake.verified:
            self._hang_up()
            return
        self._say_goodbye()
        if self.peer is None or self._goodbye_heard:
            self._hang_up()

    def _say_goodbye(self) -> None:
        if self._goodbye_said or self._gone or self._queue:  # in the middle of a message, the end of the socket says it
            return
        self._goodbye_said = True
        self.transport.write(_RECORD.pack(_GOODBYE, 0, self.peer.sent if self.peer else 0, not self.handshake.done))
        if self.peer is not None:
            self.peer.said_goodbye(self)

    def _hang_up(self) -> None:
        if self._hung_up:
            return
        self._hung_up = True
        if self.engine is not None and self.peer is not None:
            self.peer.drop_link(self)
            self.engine.part(self.peer)
        if self.transport is None:
            return
        if self._queue:
            self.transport.abort()
        else:
            self.transport.close()
