"""Copies between the memories of two processes on the same node.

MPI's shared-memory path copies twice, and both ranks must work on it at the same time; if ranks outnumber cores, each
waits for the other's time slice. `process_vm_readv` (Linux 3.2) lets the receiver copy alone once it knows the address
of a frame, and `process_vm_writev` lets the sender help. The kernel permits both between processes of the same user,
unless a security module or a container forbids it. Each rank therefore tries to read from every other rank of its node
when the job starts.

The PID of a process can be reused, so every read starts with sixteen bytes that only the right process contains.

Large messages are copied by both ends at once, which is twice as fast: the receiver starts at the front, the sender at
the end. The message is cut into pieces. Each end stores how many pieces it has claimed and copied in two bytes of its
own memory that the other end can read. To claim the next piece, an end first raises its count and then reads the
other's count. The piece is its own only if the sum does not exceed the number of pieces; otherwise it withdraws the
claim. The message is complete when the sender has copied all pieces that it claimed and the receiver all the others.

A busy sender therefore never delays the receiver, except in the middle of a piece: the receiver claims what the sender
has not, and later claims of the sender fail. The kernel keeps the order of the steps, because it takes references to
the other process's pages, a full memory barrier, before it reads or writes them. A byte is never seen half written.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_MARK_SIZE = 16
_PR_SET_PTRACER = 0x59616D61
_libc = ctypes.CDLL(None, use_errno=True)
_LINUX = sys.platform == "linux"
_readv = getattr(_libc, "process_vm_readv", None) if _LINUX else None
_writev = getattr(_libc, "process_vm_writev", None) if _LINUX else None
_mark = ctypes.create_string_buffer(secrets.token_bytes(_MARK_SIZE), _MARK_SIZE)
Place = tuple[int, int, bytes]  # PID, address of the mark, and the mark itself
TURN = 4 << 20  # bytes that one end copies per turn of its event loop, about half a millisecond
WORTH_IT = 1 << 20  # bytes; the sender is asked to help with larger messages
_MOST_PIECES = 254  # one more still fits into a byte
_SMALLEST_PIECE = 512 << 10  # bytes; a claim takes a few microseconds, copying such a piece about 60
Span = tuple[int, int, int]  # address at the sender, address at the receiver, bytes


class _Span(ctypes.Structure):
    """The struct iovec of <sys/uio.h>."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


for _call in filter(None, (_readv, _writev)):
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = (ctypes.c_int, *(ctypes.POINTER(_Span), ctypes.c_ulong) * 2, ctypes.c_ulong)


def place() -> Place:
    """Return the information that others need to read the memory of this process."""
    return os.getpid(), ctypes.addressof(_mark), _mark.raw


def allow() -> None:
    """Let the launcher's descendants read this process if only ancestors may (Yama's ptrace_scope 1)."""
    prctl = getattr(_libc, "prctl", None)
    if prctl is not None:
        # This fails without Yama, but then it is not needed.
        prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)


def address(buffer: Any) -> int:
    """Return the address of a contiguous buffer in host memory."""
    from mpi4py import MPI

    return int(MPI.buffer.frombuffer(buffer, readonly=True).address)


class Neighbour:
    """A process on this node, possibly this one, whose memory can be read."""

    def __init__(self, where: Place) -> None:
        self._pid, mark_address, self._expected = where
        self._seen = ctypes.create_string_buffer(_MARK_SIZE)
        self._few = ctypes.create_string_buffer(8)
        self._local = (_Span * 2)(_Span(ctypes.addressof(self._seen), _MARK_SIZE), _Span(None, 0))
        self._remote = (_Span * 2)(_Span(mark_address, _MARK_SIZE), _Span(None, 0))

    @property
    def is_here(self) -> bool:
        """True if it is this process."""
        return self._pid == os.getpid()

    def read(self, source: int, target: int, size: int) -> bool:
        """Copy `size` bytes from the address `source` there to `target` here; return False if that fails.

        With a size of 0, check that the process exists and can be read.
        """
        assert _readv is not None
        local, remote = self._local[1], self._remote[1]
        done = 0
        while True:
            local.base, local.size = target + done, size - done
            remote.base, remote.size = source + done, size - done
            count = _readv(self._pid, self._local, 2, self._remote, 2, 0)
            if count < _MARK_SIZE or self._seen.raw != self._expected:
                return False
            done += count - _MARK_SIZE
            if done == size:
                return True
            if count == _MARK_SIZE:
                return False

    def bytes(self, source: int, size: int) -> bytes | None:
        """Return up to 8 bytes at an address there, or None if they cannot be read."""
        return self._few.raw[:size] if self.read(source, ctypes.addressof(self._few), size) else None

    def write(self, target: int, source: int, size: int) -> bool:
        """Copy `size` bytes from the address `source` here to `target` there; return False if that fails.

        The identity of the process is not checked: read something from it right before.
        """
        if _writev is None:
            return False
        done = 0
        while done < size:
            local, remote = _Span(source + done, size - done), _Span(target + done, size - done)
            count = _writev(self._pid, local, 1, remote, 1, 0)
            if count <= 0:
                return False
            done += count
        return True


def neighbour(where: Place) -> Neighbour | None:
    """Return the process at that place, or None if its memory cannot be read."""
    if _readv is None:
        return None
    found = Neighbour(where)
    return found if found.read(0, 0, 0) else None


class UnreadableError(Exception):
    """The memory of another process cannot be read, or no longer."""


def piece_size(total: int) -> int:
    """Return the bytes of a piece, small enough that neither end waits long for the other's last piece."""
    return max(min(max(total // 32, _SMALLEST_PIECE), TURN), -(-total // _MOST_PIECES))


def cut(spans: Iterable[Span], size: int) -> list[list[Span]]:
    """Cut spans into pieces of `size` bytes (the last may be smaller); a piece can contain parts of several spans."""
    pieces: list[list[Span]] = []
    room = 0
    for source, target, length in spans:
        done = 0
        while done < length:
            if not room:
                pieces.append([])
                room = size
            part = min(room, length - done)
            pieces[-1].append((source + done, target + done, part))
            done += part
            room -= part
    return pieces


class Counts:
    """Numbers of pieces that one end has claimed and copied, in memory that the other end can read."""

    def __init__(self) -> None:
        self._bytes = (ctypes.c_ubyte * 2)()
        self.address = ctypes.addressof(self._bytes)

    def set(self, claimed: int, copied: int) -> None:
        """Publish the counts."""
        self._bytes[1] = copied
        self._bytes[0] = claimed


class _End:
    """The state that both ends share: the pieces, this end's counts, and the address of the other end's counts."""

    def __init__(self, spans: Sequence[Span], size: int, counts: Counts, others: int) -> None:
        self._pieces = cut(spans, size)
        self._in_a_turn = max(TURN // size, 1)
        self._counts = counts
        self._others = others
        self.copied = 0

    def _look(self, neighbour: Neighbour) -> bytes:
        """Read the other end's counts; raise UnreadableError if it is gone."""
        seen = neighbour.bytes(self._others, 2)
        if seen is None:
            raise UnreadableError
        return seen

    def _claim(self, neighbour: Neighbour) -> bool:
        """Claim a piece; return False if the other end may have claimed it."""
        self._counts.set(self.copied + 1, self.copied)
        if self.copied + 1 + self._look(neighbour)[0] <= len(self._pieces):
            return True
        self._counts.set(self.copied, self.copied)
        return False

    def _has_copied(self) -> None:
        self.copied += 1
        self._counts.set(self.copied, self.copied)


class Pull(_End):
    """The receiver's end of a copy. It keeps the destination memory (`keeps`) alive until all copying has ended."""

    def __init__(self, spans: Sequence[Span], size: int, keeps: Any) -> None:
        self.counts = Counts()
        super().__init__(spans, size, self.counts, 0)
        self._keeps = keeps
        self.complete = not self._pieces

    def expect_help(self, helper: int) -> None:
        """Allow the sender, whose counts are at address `helper`, to claim pieces from now on."""
        self._others = helper

    def advance(self, neighbour: Neighbour) -> bool:
        """Copy as much as one turn of the loop allows, and return whether anything was copied.

        The pull may be `complete` afterwards.

        Raises:
            UnreadableError: The sender's memory cannot be read.
        """
        if self.complete:  # true from the start if a message consists of its packed block only
            return False
        before = self.copied
        for _ in range(self._in_a_turn):
            if self._others and not self._claim(neighbour):
                claimed, copied = self._look(neighbour)
                self.complete = claimed == copied == len(self._pieces) - self.copied
                break
            for source, target, size in self._pieces[self.copied]:
                if not neighbour.read(source, target, size):
                    raise UnreadableError
            self._has_copied()
            if self.copied == len(self._pieces):
                self.complete = True
                break
        if self.complete:
            self._keeps = None
        return self.copied > before


class Push(_End):
    """The sender's end of a copy that the receiver asked for; the receiver's counts are at address `asker`."""

    def __init__(self, spans: Sequence[Span], size: int, counts: Counts, asker: int) -> None:
        super().__init__(spans, size, counts, asker)
        self.done = False

    def advance(self, neighbour: Neighbour) -> bool:
        """Copy as much as one turn of the loop allows, and return whether anything was copied; see also `done`."""
        before = self.copied
        for _ in range(self._in_a_turn):
            if not self._copy_one(neighbour):
                self._counts.set(self.copied, self.copied)
                self.done = True
                break
            self._has_copied()
        return self.copied > before

    def _copy_one(self, neighbour: Neighbour) -> bool:
        try:
            claimed = self._claim(neighbour)
        except UnreadableError:
            return False
        piece = self._pieces[-1 - self.copied] if claimed else []
        return claimed and all(neighbour.write(target, source, size) for source, target, size in piece)
