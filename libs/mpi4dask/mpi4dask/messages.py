"""Conversion of messages to frames and back, in `distributed`'s format, with a shortcut for NumPy arrays.

The header that distributed.protocol writes for an array, and the array that it builds from a header, depend only on the
memory layout. Computing them takes longer than sending a small message, so both are cached: distributed serializes and
deserializes only the first of all arrays with the same layout. Everything else always goes through distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pickle import PickleBuffer
from typing import Any, TypeVar

import msgpack
from distributed import protocol
from distributed.comm.utils import OFFLOAD_THRESHOLD
from distributed.protocol.serialize import (
    Pickled,
    Serialize,
    Serialized,
    ToPickle,
    msgpack_decode_default,
    msgpack_encode_default,
)
from distributed.protocol.utils import msgpack_opts
from distributed.sizeof import safe_sizeof
from distributed.utils import offload

from mpi4dask.buffers import Packers
from mpi4dask.wire import Buffer, length

try:
    import numpy
except ImportError:  # numpy is optional
    numpy = None  # type: ignore[assignment]

GPU_FAMILIES = ("cuda", "dask", "pickle", "error")
"""The serializers to use if both ends can receive frames in GPU memory."""

_NO_SHARDS = 1 << 62  # the transport splits large frames, so distributed need not
_PLAIN = "biufc"  # kinds of dtypes whose arrays consist of plain bytes
_KEPT = 1024
_headers: dict[tuple[Any, ...], bytes] = {}  # by layout
_layouts: dict[bytes, tuple[Any, ...]] = {}  # by header

Pack = Callable[[Any, Callable[[Any], Any]], Buffer]
K = TypeVar("K")
V = TypeVar("V")


async def to_frames(  # noqa: PLR0917
    msg: Any,
    serializers: Sequence[str] | None,
    on_error: str,
    context: dict[str, Any],
    allow_offload: bool,
    packers: Packers,
) -> list[Buffer]:
    """Serialize a message. Like distributed.comm.utils, do so in another thread if it is large.

    Args:
        msg: The message.
        serializers: The names of the serializers, None for distributed's default.
        on_error: How to treat objects that cannot be serialized, see distributed.
        context: The context for serializers.
        allow_offload: Permit another thread.
        packers: Packers for messages in `distributed`'s format.
    """

    def whole(part: Any) -> list[Buffer]:
        return protocol.dumps(part, serializers, on_error, context, _NO_SHARDS)

    known = serializers in (None, GPU_FAMILIES) and context.get("compression", "auto") is None
    make = partial(dumps, packers.pack, whole) if known and numpy is not None else whole
    if allow_offload and OFFLOAD_THRESHOLD and not 0 <= safe_sizeof(msg, default_size=-1) <= OFFLOAD_THRESHOLD:
        return await offload(make, msg)
    return make(msg)


async def from_frames(
    frames: list[Buffer], deserialize: bool, deserializers: Sequence[str] | None, allow_offload: bool
) -> Any:
    """Deserialize a message. Like distributed.comm.utils, do so in another thread if it is large.

    Args:
        frames: The frames of the message.
        deserialize: Deserialize the objects in it.
        deserializers: The names of the permitted deserializers, None for distributed's default.
        allow_offload: Permit another thread.
    """

    def whole(some: list[Buffer]) -> Any:
        return protocol.loads(some, deserialize, deserializers)

    known = len(frames) > 1 and deserialize and deserializers in (None, GPU_FAMILIES)
    make = partial(loads, whole) if known and numpy is not None else whole
    if allow_offload and deserialize and OFFLOAD_THRESHOLD and sum(map(length, frames)) > OFFLOAD_THRESHOLD:
        return await offload(make, frames)
    return make(frames)


def dumps(pack: Pack, whole: Callable[[Any], list[Buffer]], msg: Any) -> list[Buffer]:
    """Serialize a message like distributed.protocol.dumps without compression.

    Args:
        pack: Packs a message with msgpack, converting unknown objects by its second argument.
        whole: The original function.
        msg: The message.
    """
    frames: list[Buffer] = [b""]

    def aside(obj: Any) -> Any:
        kind = _kind(obj)
        if kind is None:
            return msgpack_encode_default(obj)
        place = {kind: len(frames)}
        is_array = type(obj) is Serialize and type(obj.data) is numpy.ndarray
        header = _headers.get(_layout(obj.data)) if is_array else None
        if header is not None:
            frames.extend((header, PickleBuffer(obj.data).raw()))
            return place
        own = whole(obj)[1:]
        frames.extend(own)
        if is_array and _are_the_bytes_of(obj.data, own[1:]):
            _keep(_headers, _layout(obj.data), own[0])
        return place

    with suppress(Exception):
        frames[0] = pack(msg, aside)
        return frames
    return whole(msg)  # distributed pickles it, or raises the error


def loads(whole: Callable[[list[Buffer]], Any], frames: list[Buffer]) -> Any:
    """Deserialize frames like distributed.protocol.loads; `whole` is the original function."""
    of_one = [b"", *frames[1:]]  # frames of a message that consists of a single object

    def aside(obj: dict[str, Any]) -> Any:
        if "__Serialized__" not in obj and "__Pickled__" not in obj:
            return msgpack_decode_default(obj)
        place = obj.get("__Serialized__", 0)
        header = bytes(frames[place]) if place else b""
        if header in _layouts:
            shape, dtype, strides, writeable = _layouts[header]
            array: Any = numpy.ndarray(shape, dtype, frames[place + 1], 0, strides)
            if array.flags.writeable and not writeable:
                array.flags.writeable = False
            if array.flags.writeable == writeable:
                return array
        of_one[0] = msgpack.packb(obj)
        made = whole(of_one)
        own = frames[place + 1 : place + 2]
        if place and type(made) is numpy.ndarray and _are_the_bytes_of(made, own):
            _keep(_layouts, header, _layout(made))
        return made

    with suppress(Exception):
        return msgpack.unpackb(frames[0], object_hook=aside, use_list=False, **msgpack_opts)
    return whole(frames)  # distributed raises the error


def _kind(obj: Any) -> str | None:
    if isinstance(obj, (Serialize, Serialized)):
        return "__Serialized__"
    return "__Pickled__" if isinstance(obj, (ToPickle, Pickled)) else None


def _layout(array: Any) -> tuple[Any, ...]:
    """Return the memory layout of an array, and whether it is writable."""
    return array.shape, array.dtype, array.strides, array.flags.writeable


def _are_the_bytes_of(array: Any, frames: Sequence[Buffer]) -> bool:
    """Return whether `frames` is a single frame that is exactly the memory of this plain array."""
    if len(frames) != 1 or array.dtype.kind not in _PLAIN or not array.nbytes:
        return False
    frame = numpy.frombuffer(frames[0], dtype="u1")
    addresses = {each.__array_interface__["data"][0] for each in (array, frame)}
    return frame.nbytes == array.nbytes and len(addresses) == 1


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    if len(kept) >= _KEPT:
        kept.clear()
    kept[key] = value
