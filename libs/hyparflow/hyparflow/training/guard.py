"""A rank that fails ends all ranks, within seconds and with one message.

Every rank holds a connection to rank 0 (TCP; rank 0 is connected to all). A process that ends without a farewell, by a
signal for one, closes its connection: a rank that sees it reports it and ends; rank 0 tells the others. A silent
node is noticed by TCP's keepalive, in about 15 seconds. This needs nothing of the MPI library, whose calls wait
for ever for a rank that is gone; a launcher that ends all ranks by itself may be faster, and does no harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import selectors
import socket
import stat
import struct
import sys
import termios
import threading
import time
import traceback
from collections.abc import Collection
from typing import Any, NoReturn, cast
from zlib import crc32

import numpy as np

from hyparflow.errors import HyparflowError
from hyparflow.training.agreement import meet

FAILED = 1
"""Exit status of every rank that is ended."""

INTERRUPTED = 130
"""Exit status of ranks that are interrupted together."""

_BYE = b"b"
_END = b"e"
_CONNECT_SECONDS = 20.0
_FAREWELL_SECONDS = 10.0
_SECOND_VOICE_SECONDS = 1.0
_COMMON_SECONDS = 2.0
_NAP_SECONDS = 1e-3
_STRAYS = 128  # connections that may wait beside those of the ranks
_TOKEN_BYTES = 16
_HELLO = struct.Struct(f"!{_TOKEN_BYTES}sI")
_the_guard: Guard | None = None


class Guard:
    """The connections of one process. There is one per process: ``guard()``."""

    def __init__(self, comm: Any) -> None:
        """Collective over ``comm``: all ranks of the world."""
        self.rank, self.size = comm.rank, comm.size
        self._comm = comm.Dup()
        self._idle = threading.Event()
        self._idle.set()
        self._depth = 0
        self._last_word = threading.Lock()
        self._peers: dict[socket.socket, int] = {}
        self._names = comm.allgather(f"process {os.getpid()} on {socket.gethostname()}")
        if self.size > 1:
            self._connect(comm)
            threading.Thread(target=self._watch, name="hyparflow-guard", daemon=True).start()
            import atexit

            atexit.register(self._farewell)
        self._hook = sys.excepthook
        sys.excepthook = self._uncaught

    @contextlib.contextmanager
    def working(self, comm: Any) -> Any:
        """While ranks work together: an error of this one ends all, and so does one that leaves.

        An error that all ranks raise together is not such: it goes on to the caller.
        """
        self._idle.clear()
        self._depth += 1
        try:
            yield
            if self.size > 1:
                meet(comm)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            if self.size > 1 and not self._is_common(error):
                self._fail(error)
            raise
        finally:
            self._depth -= 1
            if not self._depth:
                self._idle.set()

    def _is_common(self, error: BaseException) -> bool:
        """Whether all ranks fail, here and now; each of their errors is then said by the lowest rank that has it."""
        if getattr(error, "agreed_on", None) is not None:
            return True
        if isinstance(error, SystemExit):
            return False
        own = np.array([crc32(f"{type(error).__name__}: {error}".encode())], dtype=np.int64)
        every = np.empty(self.size, dtype=np.int64)
        request, until = self._comm.Iallgather(own, every), time.monotonic() + _COMMON_SECONDS
        while not request.Test():
            if time.monotonic() > until:
                return False
            time.sleep(_NAP_SECONDS)
        error.agreed_on = int(np.flatnonzero(every == own[0])[0])  # type: ignore[attr-defined]
        return True

    def _connect(self, comm: Any) -> None:
        listener = socket.create_server(("", 0), backlog=self.size + _STRAYS) if self.rank == 0 else None
        known = None
        if listener is not None:
            known = (socket.gethostname(), listener.getsockname()[1], secrets.token_bytes(_TOKEN_BYTES))
        host, port, token = comm.bcast(known, root=0)
        connection = None
        if self.rank:
            connection = _reach("localhost" if host == socket.gethostname() else host, port)
            if connection is not None:
                connection.sendall(_HELLO.pack(token, self.rank))
                self._peers[connection] = 0
        connected = comm.gather(connection is not None, root=0)
        if listener is not None:
            ranks = [rank for rank, reached in enumerate(connected) if reached]
            self._peers = accept(listener, token, ranks, _CONNECT_SECONDS)
            listener.close()
        accepted = comm.bcast(list(self._peers.values()), root=0)
        if connection is not None and self.rank not in accepted:  # as one that did not reach rank 0
            connection.close()
            self._peers.clear()

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        for peer in self._peers:
            selector.register(peer, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                connection: Any = key.fileobj
                try:
                    word = connection.recv(1)
                except OSError:
                    word = b""
                if word == _END:
                    self._end_all()
                selector.unregister(connection)
                if word != _BYE:
                    self._gone(self._peers[connection], "died: it was killed, or crashed")
                # Ranks leave a common work at nearly the same time; one that leaves in the midst of it is missed.
                elif not self._idle.wait(_FAREWELL_SECONDS):
                    self._gone(self._peers[connection], "left while the others were at work")

    def _gone(self, rank: int, how: str) -> NoReturn:
        if self.rank > 1:  # rank 0 is gone: rank 1 says it, if it can
            threading.Event().wait(_SECOND_VOICE_SECONDS)
        if self.rank <= 1:
            self._take_the_last_word()
            _say(f"hyparflow: rank {rank} of {self.size} ({self._names[rank]}) {how}; all ranks are ended.")
        self._end_all()

    def _take_the_last_word(self) -> None:
        """Of both threads of this rank one says why all end, and ends them; for the other this does not return.

        When ranks are told to end, they do so at once; the thread that watches must not take that for a death.
        """
        if not self._last_word.acquire(blocking=False):
            threading.Event().wait()

    def _end_all(self) -> NoReturn:
        sys.stdout.flush()
        for connection in self._peers if self.rank == 0 else ():
            with contextlib.suppress(OSError):
                connection.sendall(_END)
        os._exit(FAILED)

    def _fail(self, error: BaseException) -> NoReturn:
        """Say what this rank failed with, and end all ranks."""
        self._take_the_last_word()
        where = f"rank {self.rank} of {self.size} ({self._names[self.rank]})"
        if isinstance(error, KeyboardInterrupt):
            _say(f"hyparflow: {where} was interrupted; all ranks are ended.")
        else:
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            _say(f"{text}hyparflow: {where} failed with {type(error).__name__}: {error} (above); all ranks are ended.")
        sys.stdout.flush()
        from mpi4py import MPI

        if self.rank:
            for connection in self._peers:  # rank 0 ends the others, and says nothing more
                with contextlib.suppress(OSError):
                    connection.sendall(_END)
            if self._peers:  # a rank that an abort ends before it has heard this would be reported as dead
                threading.Event().wait(_SECOND_VOICE_SECONDS)
        else:
            self._end_all()
        MPI.COMM_WORLD.Abort(FAILED)
        os._exit(FAILED)

    def _uncaught(self, kind: Any, error: BaseException, trace: Any) -> None:
        """In place of Python's own last word: one voice for what all ranks raise, the end of all for what one does."""
        if self.size == 1:
            self._hook(kind, error, trace)
            return
        if not self._is_common(error):
            self._fail(error)
        if isinstance(error, KeyboardInterrupt):
            self._interrupted()
        if error.agreed_on != self.rank:  # type: ignore[attr-defined]
            return
        if isinstance(error, HyparflowError):
            _say(f"hyparflow: {type(error).__name__}: {error}{_line_of_program(trace)}")
        else:
            self._hook(kind, error, trace)

    def _interrupted(self) -> NoReturn:
        """End this rank as the others do; rank 0 says it, and ends first. Python itself would end it by the signal."""
        if self.rank == 0:
            _say("hyparflow: interrupted; all ranks are ended.")
        else:  # a launcher ends all ranks when the first has ended
            threading.Event().wait(_SECOND_VOICE_SECONDS)
        sys.stdout.flush()
        self._farewell()
        os._exit(INTERRUPTED)

    def _farewell(self) -> None:
        for connection in self._peers:
            with contextlib.suppress(OSError):
                connection.sendall(_BYE)


def guard(comm: Any) -> Guard:
    """The guard of this process; the first call is collective over ``comm``."""
    global _the_guard  # noqa: PLW0603
    if _the_guard is None:
        _the_guard = Guard(comm)
    return _the_guard


def accept(listener: socket.socket, token: bytes, ranks: Collection[int], seconds: float) -> dict[socket.socket, int]:
    """Accept the connections of ``ranks``, each of which says ``token`` and its rank, within ``seconds`` in all.

    Other connections (port scans, probes that say nothing or something else, resets) are closed and hold up nobody. A
    rank that has said nothing by then is missing in what is returned: connection -> rank.
    """
    found: dict[socket.socket, int] = {}
    missing = set(ranks)
    until = time.monotonic() + seconds
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while missing and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.data is None:
                    with contextlib.suppress(OSError):  # it was reset before it was accepted
                        connection, _ = listener.accept()
                        connection.setblocking(False)
                        selector.register(connection, selectors.EVENT_READ, bytearray())
                    continue
                connection = cast("socket.socket", key.fileobj)
                if not _has_spoken(connection, key.data):
                    continue
                selector.unregister(connection)
                rank = _rank_in(key.data, token)
                if rank in missing:
                    missing.remove(rank)
                    found[_kept(connection)] = rank
                else:
                    connection.close()
        for key in selector.get_map().values():
            if key.data is not None:
                cast("socket.socket", key.fileobj).close()
    return found


def _has_spoken(connection: socket.socket, heard: bytearray) -> bool:
    """Add to ``heard`` what has come; return whether that is all: a whole hello, or the connection's end."""
    try:
        part = connection.recv(_HELLO.size - len(heard))
    except BlockingIOError:
        return False
    except OSError:
        part = b""
    heard += part
    return not part or len(heard) == _HELLO.size


def _rank_in(hello: bytes, token: bytes) -> int:
    """The rank that says hello; -1 for a stranger."""
    if len(hello) != _HELLO.size:
        return -1
    given, rank = _HELLO.unpack(hello)
    return int(rank) if secrets.compare_digest(given, token) else -1


def _reach(host: str, port: int) -> socket.socket | None:
    """A connection, or None where there is no way: the launcher then has to notice a dead rank."""
    try:
        return _kept(socket.create_connection((host, port), timeout=_CONNECT_SECONDS))
    except OSError:
        return None


def _kept(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _line_of_program(trace: Any) -> str:
    """The line of the user's program that led to an error."""
    frames = [each for each in traceback.walk_tb(trace) if each[0].f_globals.get("__name__") == "__main__"]
    return f" ({frames[-1][0].f_code.co_filename}, line {frames[-1][1]})" if frames else ""


def _say(text: str) -> None:
    """In one piece, so that other ranks' lines do not come between, and read before the end of all ranks drowns it."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    with contextlib.suppress(OSError):  # it is closed
        _wait_until_read(2)


def _wait_until_read(descriptor: int) -> None:
    """Let the launcher read what is in this pipe, for a second at most: on an abort MPICH's drops what is unread."""
    until = time.monotonic() + 1
    while stat.S_ISFIFO(os.fstat(descriptor).st_mode) and time.monotonic() < until:
        (unread,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
        if not unread:
            return
        time.sleep(0.001)
