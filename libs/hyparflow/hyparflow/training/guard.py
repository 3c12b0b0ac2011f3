"""Termination of all ranks, within seconds and with one message, when one fails.

Every rank has a TCP connection to rank 0. A process that exits without a farewell, for example by a signal, closes its
connection. Rank 0 then reports the death and tells the other ranks to exit; if rank 0 itself dies, the others notice.
TCP's keepalive detects a silent node within about 15 seconds. None of this depends on the MPI library, whose calls wait
forever for a dead rank. A launcher that ends all ranks by itself can be faster, and does no harm.
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
_STRAYS = 128  # connections that may wait in addition to those of the ranks
_TOKEN_BYTES = 16
_HELLO = struct.Struct(f"!{_TOKEN_BYTES}sI")
_the_guard: Guard | None = None


class Guard:
    """The connections of one process, which has a single guard: ``guard()``."""

    def __init__(self, comm: Any) -> None:
        """Connect all ranks; collective over ``comm``, which must be the world."""
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
        """Enter a context in which ranks work together, and an error or exit of this rank ends all ranks.

        An error that all ranks raise together is passed on to the caller.
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
        """Return whether all ranks fail now; the lowest rank with each error then prints it."""
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
        if connection is not None and self.rank not in accepted:  # like a rank that did not reach rank 0
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
                # Ranks leave their common work at nearly the same time; one that leaves in the middle of it is missing.
                elif not self._idle.wait(_FAREWELL_SECONDS):
                    self._gone(self._peers[connection], "left while the others were at work")

    def _gone(self, rank: int, how: str) -> NoReturn:
        if self.rank > 1:  # rank 0 is gone: rank 1 reports it if possible
            threading.Event().wait(_SECOND_VOICE_SECONDS)
        if self.rank <= 1:
            self._take_the_last_word()
            _say(f"hyparflow: rank {rank} of {self.size} ({self._names[rank]}) {how}; all ranks are ended.")
        self._end_all()

    def _take_the_last_word(self) -> None:
        """Let one thread of this rank report the reason and end all ranks; for the other, this does not return.

        Ranks that are told to exit do so at once, and the watching thread must not report that as a death.
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
        """Print the error of this rank, and end all ranks."""
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
            for connection in self._peers:  # rank 0 ends the others without a further message
                with contextlib.suppress(OSError):
                    connection.sendall(_END)
            if self._peers:  # a rank that is aborted before it has received this would be reported as dead
                threading.Event().wait(_SECOND_VOICE_SECONDS)
        else:
            self._end_all()
        MPI.COMM_WORLD.Abort(FAILED)
        os._exit(FAILED)

    def _uncaught(self, kind: Any, error: BaseException, trace: Any) -> None:
        """Replace Python's excepthook: print an error of all ranks once, and end all ranks after an error of one."""
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
        """End this rank like the others; rank 0 prints the message and exits first. Python would exit by the signal."""
        if self.rank == 0:
            _say("hyparflow: interrupted; all ranks are ended.")
        else:  # a launcher ends all ranks after the first has exited
            threading.Event().wait(_SECOND_VOICE_SECONDS)
        sys.stdout.flush()
        self._farewell()
        os._exit(INTERRUPTED)

    def _farewell(self) -> None:
        for connection in self._peers:
            with contextlib.suppress(OSError):
                connection.sendall(_BYE)


def guard(comm: Any) -> Guard:
    """Return the guard of this process; the first call is collective over ``comm``."""
    global _the_guard  # noqa: PLW0603
    if _the_guard is None:
        _the_guard = Guard(comm)
    return _the_guard


def accept(listener: socket.socket, token: bytes, ranks: Collection[int], seconds: float) -> dict[socket.socket, int]:
    """Accept the connections of ranks, each of which sends the token and its rank.

    Other connections (port scans, probes without or with wrong data, resets) are closed without delaying the ranks.

    Args:
        listener: The listening socket.
        token: The secret of this job.
        ranks: The ranks to wait for.
        seconds: The time for all of them.

    Returns:
        Connection -> rank, without ranks that did not connect in time.
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
                    with contextlib.suppress(OSError):  # the connection was reset before it was accepted
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
    """Append received bytes to ``heard``; return True after a complete hello or at the end of the connection."""
    try:
        part = connection.recv(_HELLO.size - len(heard))
    except BlockingIOError:
        return False
    except OSError:
        part = b""
    heard += part
    return not part or len(heard) == _HELLO.size


def _rank_in(hello: bytes, token: bytes) -> int:
    """Return the rank in a hello, -1 for a stranger."""
    if len(hello) != _HELLO.size:
        return -1
    given, rank = _HELLO.unpack(hello)
    return int(rank) if secrets.compare_digest(given, token) else -1


def _reach(host: str, port: int) -> socket.socket | None:
    """Connect to rank 0; return None if that fails, so that only the launcher can notice a dead rank."""
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
    """Return the line of the user's program that led to an error."""
    frames = [each for each in traceback.walk_tb(trace) if each[0].f_globals.get("__name__") == "__main__"]
    return f" ({frames[-1][0].f_code.co_filename}, line {frames[-1][1]})" if frames else ""


def _say(text: str) -> None:
    """Print a message in one piece, and wait until it is read, because other ranks print and exit too."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    with contextlib.suppress(OSError):  # it is closed
        _wait_until_read(2)


def _wait_until_read(descriptor: int) -> None:
    """Wait at most a second until the launcher has read this pipe. On an abort, MPICH's drops unread output."""
    until = time.monotonic() + 1
    while stat.S_ISFIFO(os.fstat(descriptor).st_mode) and time.monotonic() < until:
        (unread,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
        if not unread:
            return
        time.sleep(0.001)
