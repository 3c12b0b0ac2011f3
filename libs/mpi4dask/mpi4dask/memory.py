"""Copying frames straight from the memory of one rank into that of another on this node: one copy, by either end.

MPI's own way through shared memory copies twice, and both ranks have to work on it at the same time: where ranks
outnumber cores, each waits for the other's time slice. `process_vm_readv` (Linux 3.2) lets the receiver copy alone,
once it knows where a frame lies, and `process_vm_writev` lets the sender help. The kernel grants both
to processes of one user, unless a security module or a container forbids it; so each rank tries to read from every
other one of its node when the job begins.

A process's number may be used again by another one: every read begins with sixteen bytes that only the right process
holds.

Help of the sender:

Copying a message between two processes of a node by both at once: the receiver from its front, the sender from its
end. Two cores copy twice as fast as one.

The message is cut into pieces. Each end counts the pieces that it has claimed, and those that it has copied, in two
bytes of its own memory that the other can read. To claim the next piece, an end first raises its count and then looks
at the other's: only where both together are no more than there are pieces, the piece is its own; otherwise it takes the
claim back. The message is complete when the sender has copied what it has claimed, and the receiver everything else.

So nobody waits for a sender that is busy elsewhere, unless it is in the middle of copying a piece: what it has not
claimed, the receiver claims, and then no claim of the sender's can succeed. The kernel keeps the order of the steps: it
takes references to the other's pages, a full memory barrier, before it reads or writes them. A byte is never seen half
written.
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
Place = tuple[int, int, bytes]  # a process's number, the address of its mark, and the mark
TURN = 4 << 20  # bytes that one end copies in one turn of its event loop, in half a millisecond or so
WORTH_IT = 1 << 20  # bytes of a message from which on a sender is asked to help
_MOST_PIECES = 254  # so that one more still fits a byte
_SMALLEST_PIECE = 512 << 10  # a claim takes some microseconds, such a piece 60 or so
Span = tuple[int, int, int]  # where it lies at the sender, where it goes at the receiver, its bytes


class _Span(ctypes.Structure):
    """struct iovec of <sys/uio.h>."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


for _call in filter(None, (_readv, _writev)):
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = (ctypes.c_int, *(ctypes.POINTER(_Span), ctypes.c_ulong) * 2, ctypes.c_ulong)


def place() -> Place:
    """What others need to know to read this process's memory."""
    return os.getpid(), ctypes.addressof(_mark), _mark.raw


def allow() -> None:
    """Where only ancestors may look at a process (Yama's ptrace_scope 1), let those do it who share our launcher."""
    prctl = getattr(_libc, "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)  # fails without Yama: then there is no need


def address(buffer: Any) -> int:
    """Where a contiguous buffer in host memory begins."""
    from mpi4py import MPI

    return int(MPI.buffer.frombuffer(buffer, readonly=True).address)


class Neighbour:
    """Another process on this node, or this one, whose memory can be read."""

    def __init__(self, where: Place) -> None:
        self._pid, mark_address, self._expected = where
        self._seen = ctypes.create_string_buffer(_MARK_SIZE)
        self._few = ctypes.create_string_buffer(8)
        self._local = (_Span * 2)(_Span(ctypes.addressof(self._seen), _MARK_SIZE), _Span(None, 0))
        self._remote = (_Span * 2)(_Span(mark_address, _MARK_SIZE), _Span(None, 0))

    @property
    def is_here(self) -> bool:
        """Whether it is this process."""
        return self._pid == os.getpid()

    def read(self, source: int, target: int, size: int) -> bool:
        """Copy `size` bytes from an address there to one here; return False where that fails.

        Without bytes to copy, it tells whether the process is there and can be read.
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
        """A few bytes at an address there; None where they cannot be read."""
        return self._few.raw[:size] if self.read(source, ctypes.addressof(self._few), size) else None

    def write(self, target: int, source: int, size: int) -> bool:
        """Copy `size` bytes from an address here to one there; return False where that fails.

        Nothing shows that the process is still the right one: read something of it right before.
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
    """The process at that place, or None where its memory cannot be read."""
    if _readv is None:
        return None
    found = Neighbour(where)
    return found if found.read(0, 0, 0) else None


class UnreadableError(Exception):
    """The memory of another process cannot be read, or not any more."""


def piece_size(total: int) -> int:
    """Bytes of a piece: small enough that neither end waits long for the other's last one."""
    return max(min(max(total // 32, _SMALLEST_PIECE), TURN), -(-total // _MOST_PIECES))


def cut(spans: Iterable[Span], size: int) -> list[list[Span]]:
    """Cut spans into pieces of `size` bytes, but for the last; a piece may hold parts of several spans."""
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
    """The pieces that one end has claimed and copied, where the other end can look."""

    def __init__(self) -> None:
        self._bytes = (ctypes.c_ubyte * 2)()
        self.address = ctypes.addressof(self._bytes)

    def set(self, claimed: int, copied: int) -> None:
        """Show these counts from now on."""
        self._bytes[1] = copied
        self._bytes[0] = claimed


class _End:
    """What both ends have: the pieces, this end's counts, and where the other end's are."""

    def __init__(self, spans: Sequence[Span], size: int, counts: Counts, others: int) -> None:
        self._pieces = cut(spans, size)
        self._in_a_turn = max(TURN // size, 1)
        self._counts = counts
        self._others = others
        self.copied = 0

    def _look(self, neighbour: Neighbour) -> bytes:
        """The other end's counts. Raise UnreadableError where it is gone."""
        seen = neighbour.bytes(self._others, 2)
        if seen is None:
            raise UnreadableError
        return seen

    def _claim(self, neighbour: Neighbour) -> bool:
        """Claim a piece; return False where the other end may have it."""
        self._counts.set(self.copied + 1, self.copied)
        if self.copied + 1 + self._look(neighbour)[0] <= len(self._pieces):
            return True
        self._counts.set(self.copied, self.copied)
        return False

    def _has_copied(self) -> None:
        self.copied += 1
        self._counts.set(self.copied, self.copied)


class Pull(_End):
    """The receiver's end. It holds on to `keeps`, the memory that is copied into, as long as anybody copies."""

    def __init__(self, spans: Sequence[Span], size: int, keeps: Any) -> None:
        self.counts = Counts()
        super().__init__(spans, size, self.counts, 0)
        self._keeps = keeps
        self.complete = not self._pieces

    def expect_help(self, helper: int) -> None:
        """From now on the sender, which counts at that address, may claim pieces."""
        self._others = helper

    def advance(self, neighbour: Neighbour) -> bool:
        """Copy what one turn of the loop allows; return whether something was copied. It may be `complete` then.

        Raise UnreadableError where the sender's memory cannot be read.
        """
        if self.complete:  # from the beginning: a message may have nothing but its packed block
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
    """The sender's end, from when it was asked; the receiver counts at `asker`."""

    def __init__(self, spans: Sequence[Span], size: int, counts: Counts, asker: int) -> None:
        super().__init__(spans, size, counts, asker)
        self.done = False

    def advance(self, neighbour: Neighbour) -> bool:
        """Copy what one turn of the loop allows; return whether something was copied. It may be `done` then."""
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
