"""Messages as frames: what distributed makes, and the shorter way for arrays."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import dask
import numpy as np
import pandas as pd
from distributed import protocol
from distributed.protocol import Serialized, to_serialize
from distributed.protocol.serialize import ToPickle, serialize
from mpi4dask import messages
from mpi4dask.buffers import POOLED_FROM, Packers
from pair import WORLD, Pair

_PACKERS = Packers(256 << 20)
_DUMPS = partial(protocol.dumps, context={"compression": None}, frame_split_size=1 << 62)
_DTYPES = ("u1", "?", "i8", ">i4", "f2", "f4", "f8", "c16", "longdouble", "M8[ns]", "m8[s]", "S3", "U2", "V5")
_DTYPES += ("i4,f8", "O")


class Colour(enum.Enum):
    """Something that distributed writes in a way of its own."""

    RED = 1


def ways_to_lie(dtype: str) -> list[Any]:
    """Arrays of a dtype, lying in memory in all ways that matter."""
    array = np.arange(24).astype("i8").astype(dtype) if dtype not in {"V5", "i4,f8"} else np.zeros(24, dtype)
    cube = array.reshape(2, 3, 4)
    fixed = cube.copy()
    fixed.flags.writeable = False
    lain = [array, cube, cube.T, np.asfortranarray(cube), cube.transpose(1, 0, 2), cube[:, ::2], cube[::-1], fixed]
    lain += [cube[:1], cube[:0], array[3:3], array[5], array[5:6].reshape(()), cube[:, :1].reshape(2, 1, 4)]
    return [*lain, np.broadcast_to(array[:3], (4, 3)), np.broadcast_to(array[:1], (5,)), array[1:]]


def same(one: Any, other: Any) -> bool:
    """Whether two things that were read cannot be told apart."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        alike = all(getattr(one, name) == getattr(other, name) for name in ("dtype", "shape", "strides"))
        return alike and one.flags.writeable == other.flags.writeable and one.tolist() == other.tolist()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (pd.DataFrame, pd.Series)):
        return bool(one.equals(other))
    return bool(one == other)


def as_distributed_does(message: Any) -> None:
    """Written and read like distributed's, whether for the first time or not."""
    theirs = _DUMPS(message)
    for _ in range(2):
        ours = messages.dumps(_PACKERS.pack, _DUMPS, message)
        assert [bytes(frame) for frame in map(memoryview, ours)] == [bytes(frame) for frame in map(memoryview, theirs)]
        for frames in (ours, [bytearray(frame) for frame in theirs], [bytes(frame) for frame in theirs]):
            assert same(messages.loads(protocol.loads, frames), protocol.loads(frames)), message


async def arrays_are_written_and_read_as_distributed_does(pair: Pair) -> None:
    for dtype in _DTYPES:
        for array in ways_to_lie(dtype):
            as_distributed_does(to_serialize(array))
    for array in (np.ma.masked_array([1, 2], [0, 1]), np.matrix([[1, 2]])):  # no plain ones
        as_distributed_does(to_serialize(array))


def anything(rng: random.Random, depth: int = 0) -> Any:
    """A message, or a part of one."""
    if depth < 3 and rng.random() < 0.5:
        parts = [anything(rng, depth + 1) for _ in range(rng.randrange(5))]
        return {f"k{number}": part for number, part in enumerate(parts)} if rng.random() < 0.5 else parts
    array = rng.choice(ways_to_lie(rng.choice(_DTYPES)))
    frame = pd.DataFrame({"a": range(3), "b": list("xyz")})
    leaves = [None, 1, 2.5, "x", b"yz", {1, 2}, Colour.RED, ToPickle({"p": 1}), to_serialize({"d": [1]})]
    arrays = [to_serialize(part) for part in (array, [array, 1], {"x": array}, frame)]
    return rng.choice([*leaves, *arrays, *arrays, Serialized(*serialize(array))])


async def messages_of_all_kinds_are_written_and_read_as_distributed_does(pair: Pair) -> None:
    with dask.config.set({"distributed.scheduler.allowed-imports": ["scenarios_messages"]}):
        for seed in range(400):
            as_distributed_does(anything(random.Random(seed)))


async def large_messages_are_written_and_read_as_distributed_does(pair: Pair) -> None:
    for size in (POOLED_FROM - 100, POOLED_FROM, 300_000, 4 << 20):
        data = b"x" * size
        for part in (data, bytearray(data), "\N{SNOWMAN}" * size, [*range(size // 8)], to_serialize(data)):
            as_distributed_does({"op": "put", "data": [part, to_serialize(np.ones(3))]})


async def packed_messages_are_intact_until_they_are_read(pair: Pair) -> None:
    comm = await pair.comm()
    sent = [bytes([number]) * (POOLED_FROM + 1000 * number) for number in range(30)]
    for number, data in enumerate(sent):
        await comm.write({"number": number, "data": data})
    await pair.meet()  # neither end has read anything, so all packers are in use
    for number, data in enumerate(sent):
        assert await comm.read() == {"number": number, "data": data}


async def a_packer_is_not_used_while_a_view_of_its_buffer_exists(pair: Pair) -> None:
    packers = Packers(256 << 20)
    frames = [packers.pack(bytes([number]) * POOLED_FROM, repr) for number in range(10)]
    for number, frame in enumerate(frames):
        assert bytes(frame[-POOLED_FROM:]) == bytes([number]) * POOLED_FROM
    part = memoryview(frames.pop(0))[5:9]
    del frames
    assert isinstance(packers.pack(b"z" * POOLED_FROM, repr), memoryview)
    assert bytes(part) == bytes(4)


async def small_capacities_keep_no_packers(pair: Pair) -> None:
    for capacity in (0, 16 * POOLED_FROM):
        packers = Packers(capacity)
        for number in range(3):
            assert bytes(packers.pack(b"a" * (2 * POOLED_FROM), repr))[-1:] == b"a", number
        assert not packers._free


async def what_cannot_be_written_or_read_is_distributeds_error(pair: Pair) -> None:
    def error(function: Callable[[], Any]) -> tuple[type, str]:
        try:
            function()
        except Exception as exc:
            return type(exc), str(exc)
        raise AssertionError("no error")

    for message in (2**70, {"x": [to_serialize(np.ones(3)), 2**70]}):
        assert error(partial(messages.dumps, _PACKERS.pack, _DUMPS, message)) == error(partial(_DUMPS, message))
    whole = _DUMPS({"x": to_serialize(np.ones(100))})
    messages.loads(protocol.loads, whole)
    for frames in ([*whole[:2], whole[2][:50]], [b"\xc1", *whole[1:]], [whole[0], b"", whole[2]], [b""]):
        assert error(partial(messages.loads, protocol.loads, frames)) == error(partial(protocol.loads, frames))


async def of_arrays_that_lie_alike_distributed_writes_and_reads_the_first(pair: Pair) -> None:
    comm = await pair.comm()
    watched = {"dumps": protocol.dumps, "loads": protocol.loads}
    with mock.patch.multiple(protocol, **{name: mock.Mock(wraps=real) for name, real in watched.items()}):
        for number in range(3):
            sent = {"status": "OK", "data": {"a": to_serialize(np.full((7, 11), number, dtype="f4"))}}
            await comm.write(sent)
            heard = await comm.read()
            assert heard["data"]["a"].tolist() == [[number] * 11] * 7
        assert (protocol.dumps.call_count, protocol.loads.call_count) == (1, 1)


async def messages_are_compressed_where_both_ends_agreed_to(pair: Pair) -> None:
    comm = await pair.comm()
    comm.handshake_options["compression"] = "zlib"  # as between two hosts
    for _ in range(2):
        sent = await comm.write(to_serialize(np.full(500_000, WORLD.rank)))
        assert (await comm.read()).tolist() == [1 - WORLD.rank] * 500_000
        assert sent < 50_000
