"""Copying frames straight from the memory of one rank into that of another on this node: one copy, by either end.

MPI's own way through shared memory copies twice, and both ranks have to work on it at the same time: where ranks
outnumber cores, each waits for the other's time slice. `process_vm_readv` (Linux 3.2) lets the receiver copy alone,
once it knows where a frame lies, and `process_vm_writev` lets the sender help (see `both_ends`). The kernel grants both
to processes of one user, unless a security module or a container forbids it; so each rank tries to read from every
other one of its node when the job begins.

A process's number may be used again by another one: every read begins with sixteen bytes that only the right process
holds.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
from typing import Any

_MARK_SIZE = 16
_PR_SET_PTRACER = 0x59616D61


class _Span(ctypes.Structure):
    """struct iovec of <sys/uio.h>."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_LINUX = sys.platform == "linux"
_readv = getattr(_libc, "process_vm_readv", None) if _LINUX else None
_writev = getattr(_libc, "process_vm_writev", None) if _LINUX else None
for _call in filter(None, (_readv, _writev)):
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = (ctypes.c_int, *(ctypes.POINTER(_Span), ctypes.c_ulong) * 2, ctypes.c_ulong)

_mark = ctypes.create_string_buffer(secrets.token_bytes(_MARK_SIZE), _MARK_SIZE)

Place = tuple[int, int, bytes]  # a process's number, the address of its mark, and the mark


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
