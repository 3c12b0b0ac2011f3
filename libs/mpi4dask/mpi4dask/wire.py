"""The wire format: records in envelopes, and the layout of a message's frames.

An envelope is a sequence of records for one engine. It carries everything over MPI except large frames.

The small frames of a message are packed into one block, and large frames travel on their own. The block begins with a
table of one 64-bit word per frame (its size and two flags), which is omitted if the message is a single packed frame.
Large frames are never copied on the way: they follow the block one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpi4dask import gpu
from mpi4dask.errors import ProtocolError

ENVELOPE = struct.Struct("<QQQ")  # receiving engine, sending engine, total bytes
RECORD = struct.Struct("<IIQQ")  # kind, number, and two words that depend on the kind
# Transfer id at the sender, address of the sender's counts, bytes outside the packed block, number of addresses that
# follow.
TRANSFER = struct.Struct("<QQQQ")
SPAN = struct.Struct("<QQQ")  # address at the sender, address at the receiver, bytes
HELP_WANTED = struct.Struct("<QQ")  # address of the receiver's counts, bytes of a piece

MESSAGE = 1  # number: frames in the table; words: channel, size of the packed block that follows
LARGE = 2  # like MESSAGE, then TRANSFER, the address of each part at the sender (or none), and the packed block
LARGE_APART = 3  # like LARGE, but the packed block travels as the first part of the transfer
READY = 4  # number: tag; word: transfer. The receiver has posted its receives
RELEASED = 5  # word: transfer. It was read, or will not be received
CLOSED = 6  # word: channel. The last record of this channel
ASLEEP = 7  # word: envelopes received from the engine that this is sent to
HELP = 8  # number: spans; word: transfer; then HELP_WANTED and the spans. The receiver copies, and the sender may help
HELPED = 9  # word: transfer. The sender has stopped copying, and no longer reads the receiver's counts
GONE = 10  # the last record of an engine, which has closed

CONTROL_SIZE = RECORD.size + TRANSFER.size

ALONE = 32 * 1024  # bytes; larger frames travel alone if the message does not fit into an envelope
_CUDA = 1 << 63
_ALONE = 1 << 62
_SIZE = _ALONE - 1

Buffer = Any  # bytes-like, or an object with __cuda_array_interface__


class Layout(NamedTuple):
    """A message ready to send: the parts of its packed block, and the frames that follow it."""

    nframes: int  # 0: the block is one frame without a table
    packed: list[Buffer]
    packed_size: int
    alone: list[Buffer]
    size: int  # bytes of all frames


class Entry(NamedTuple):
    """One word of the table."""

    size: int
    is_cuda: bool
    is_alone: bool


def is_cuda(frame: Buffer) -> bool:
    """Return whether the frame is in GPU memory."""
    return hasattr(frame, "__cuda_array_interface__")


def flat(frame: Buffer) -> Buffer:
    """Return the frame as an object whose len() is its size in bytes; contiguous buffers are not copied."""
    if type(frame) is bytes or type(frame) is bytearray:
        return frame
    view = frame if type(frame) is memoryview else memoryview(frame)
    if view.ndim == 1 and view.itemsize == 1 and view.contiguous:
        return view
    if view.nbytes == 0:
        return b""
    return view.cast("B") if view.contiguous else memoryview(view.tobytes())


def length(frame: Buffer) -> int:
    """Return the size in bytes of a flat or GPU frame."""
    return frame.nbytes if is_cuda(frame) else len(frame)


def lay_out(frames: Sequence[Buffer], limit: int) -> Layout:
    """Lay out frames; a message whose packed block has at most `limit` bytes travels as that block alone."""
    if len(frames) == 1 and not is_cuda(frames[0]):
        frame = flat(frames[0])
        size = len(frame)
        if size <= limit:
            return Layout(0, [frame], size, [], size)
    return _lay_out_many(frames, limit)


def _lay_out_many(frames: Sequence[Buffer], limit: int) -> Layout:
    table: list[int] = []
    packed: list[Buffer] = []
    alone: list[Buffer] = []
    prepared = [(frame, frame.nbytes, True) if is_cuda(frame) else _host(frame) for frame in frames]
    total = sum(size for _, size, _ in prepared)
    fits = total + 8 * len(prepared) <= limit
    packed_size = 8 * len(prepared)
    for frame, size, on_gpu in prepared:
        if size and (on_gpu or (not fits and size >= ALONE)):
            table.append(size | _ALONE | (_CUDA if on_gpu else 0))
            alone.append(frame)
        else:
            table.append(size | (_CUDA if on_gpu else 0))
            if size:
                packed.append(frame)
                packed_size += size
    head = struct.pack(f"<{len(table)}Q", *table)
    return Layout(len(prepared), [head, *packed], packed_size, alone, total)


def _host(frame: Buffer) -> tuple[Buffer, int, bool]:
    view = flat(frame)
    return view, len(view), False


def read_table(block: memoryview, nframes: int) -> list[Entry]:
    """Read the table at the start of a packed block; raise ProtocolError if it does not match the block."""
    if 8 * nframes > len(block):
        raise ProtocolError(f"a message of {nframes} frames has a block of only {len(block)} bytes")
    words = struct.unpack_from(f"<{nframes}Q", block)
    entries = [Entry(word & _SIZE, bool(word & _CUDA), bool(word & _ALONE)) for word in words]
    inside = sum(entry.size for entry in entries if not entry.is_alone)
    if 8 * nframes + inside != len(block):
        raise ProtocolError(f"the frames of a block of {len(block)} bytes add up to {8 * nframes + inside}")
    return entries


def unpack(block: memoryview, entries: Sequence[Entry], alone: Sequence[Buffer]) -> list[Buffer]:
    """Return the frames in order: views of the block, and the frames that travelled alone."""
    frames: list[Buffer] = []
    others = iter(alone)
    start = 8 * len(entries)
    for entry in entries:
        if entry.is_alone:
            frames.append(next(others))
        else:
            frames.append(block[start : start + entry.size])
            start += entry.size
    return frames


def assemble(block: memoryview, entries: Sequence[Entry], alone: Sequence[memoryview]) -> list[Buffer]:
    """Unpack frames that were all received into host memory, and move GPU frames to the GPU."""
    lone = [entry for entry in entries if entry.is_alone]
    placed = [gpu.to_device(view) if entry.is_cuda else view for entry, view in zip(lone, alone, strict=True)]
    return unpack(block, entries, placed)
