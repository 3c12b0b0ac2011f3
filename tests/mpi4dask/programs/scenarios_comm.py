"""What distributed expects of every backend: the assertions of its own communication tests."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pandas as pd
from distributed.comm import connect
from distributed.protocol import Serialized, to_serialize
from mpi4dask import counters
from pair import WORLD, Pair


async def echo(pair: Pair, message: Any, **args: Any) -> Any:
    """Rank 1 sends, rank 0 sends back what it read; return what this rank read."""
    comm = await pair.comm(**args)
    if pair.serves:
        heard = await comm.read()
        await comm.write(message)
        return heard
    await comm.write(message)
    return await comm.read()


async def plain_objects_come_as_they_were_sent(pair: Pair) -> None:
    message = {"op": "x", "n": 1, "list": [None, 1.5, True], "bytes": b"abc" * 100, "deep": {"a": {"b": ""}}}
    heard = await echo(pair, message)
    assert heard == {**message, "list": (None, 1.5, True)}


async def arrays_of_all_sizes_come_whole(pair: Pair) -> None:
    comm = await pair.comm()
    for size in (0, 1, 1000, 32 * 1024, 131_000, 131_072, 200_000, 1_000_003, 40_000_000):
        sent = np.random.default_rng(size).integers(0, 255, size, dtype="u1")
        if pair.serves:
            await comm.write(to_serialize(sent))
        else:
            heard = await comm.read()
            assert heard.dtype == sent.dtype
            assert np.array_equal(heard, sent), size


async def received_arrays_can_be_written(pair: Pair) -> None:
    comm = await pair.comm()
    for size in (10, 50_000, 3_000_000):
        await comm.write(to_serialize(np.arange(size)))
        heard = await comm.read()
        heard += 1
        assert heard[-1] == size


async def buffers_are_not_used_again_while_an_array_lives(pair: Pair) -> None:
    comm = await pair.comm()
    kept = []
    for number in range(12):
        await comm.write(to_serialize(np.full(300_000, number)))
        kept.append((await comm.read())[::2].reshape(-1, 10)[3:])
        kept[number // 2] = kept[number // 2].view()
    assert [int(array.min()) for array in kept] == [int(array.max()) for array in kept] == list(range(12))


async def data_frames_come_as_they_were_sent(pair: Pair) -> None:
    frame = pd.DataFrame({"a": range(50_000), "b": np.linspace(0, 1, 50_000), "c": ["x", "yy"] * 25_000})
    heard = await echo(pair, {"data": to_serialize(frame)})
    pd.testing.assert_frame_equal(heard["data"], frame)


async def messages_of_many_frames_come_in_order(pair: Pair) -> None:
    parts = [to_serialize(np.full(size, size)) for size in [3, 40_000, 5_000, 0, 9_000] * 60]
    heard = await echo(pair, parts)
    assert [len(part) for part in heard] == [3, 40_000, 5_000, 0, 9_000] * 60
    assert all((part == len(part)).all() for part in heard)


async def messages_of_thousands_of_small_frames_come_in_order(pair: Pair) -> None:
    heard = await echo(pair, [to_serialize(np.full(20, number)) for number in range(3000)])
    assert [part[0] for part in heard] == list(range(3000))


async def small_frames_alone_fill_more_than_an_envelope(pair: Pair) -> None:
    for count in (1, 7, 40):
        heard = await echo(pair, {number: to_serialize(np.full(30_000, number, dtype="u1")) for number in range(count)})
        assert [int(part.sum()) for part in heard.values()] == [30_000 * number for number in range(count)]


async def not_deserialized_where_not_wanted(pair: Pair) -> None:
    array = np.arange(100_000)
    comm = await pair.comm(listen_args={"deserialize": False})
    if pair.serves:
        heard = await comm.read()
        assert isinstance(heard["x"], Serialized)
        await comm.write(heard)  # passed on as it came
    else:
        await comm.write({"x": to_serialize(array)})
        assert np.array_equal((await comm.read())["x"], array)


async def large_messages_are_deserialized_beside_the_loop(pair: Pair) -> None:
    heard = await echo(pair, {"x": to_serialize(np.ones(12 << 20, dtype="u1")), "y": [1] * 1000})
    assert int(heard["x"].sum()) == 12 << 20


async def addresses_are_those_of_the_ends(pair: Pair) -> None:
    comm = await pair.comm()
    ends = await asyncio.to_thread(WORLD.allgather, (comm.local_address, comm.peer_address))
    assert ends[0][0] == ends[1][1]
    assert ends[0][1] == ends[1][0]
    assert ends[0][0].startswith("mpi://127.0.0.1:")


async def the_data_of_two_ranks_goes_over_mpi(pair: Pair) -> None:
    comm = await pair.comm()
    assert comm.extra_info["transport"] == "mpi"


async def many_connections_at_once(pair: Pair) -> None:
    comms = await pair.comms(100)
    for comm in comms:
        await comm.write(comm.local_address)
    assert [await comm.read() for comm in comms] == [comm.peer_address for comm in comms]


async def both_ends_connect_to_each_other_at_once(pair: Pair) -> None:
    addresses = await asyncio.to_thread(WORLD.allgather, await pair.listen())
    await pair.meet()
    comms = await asyncio.gather(*(pair.connect(addresses[1 - WORLD.rank]) for _ in range(20)))
    comms += [await pair.accepted.get() for _ in range(20)]
    for comm in comms:
        await comm.write(WORLD.rank)
    assert [await comm.read() for comm in comms] == [1 - WORLD.rank] * 40


async def a_process_connects_to_itself(pair: Pair) -> None:
    one = await pair.connect(await pair.listen())
    other = await pair.accepted.get()
    for sent in (b"x", to_serialize(np.arange(500_000))):
        await one.write({"x": sent})
        await other.write(await other.read())
    assert (await one.read())["x"] == b"x"
    assert len((await one.read())["x"]) == 500_000


async def loops_of_two_threads_talk(pair: Pair) -> None:
    address = await pair.listen()

    async def ask() -> tuple[int, str]:
        comm = await connect(address)
        await comm.write(to_serialize(np.arange(100_000)))
        answer = await comm.read()
        await comm.close()
        return answer, comm.extra_info["transport"]

    asking = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(ask())))
    comm = await pair.accepted.get()
    await comm.write(int((await comm.read()).sum()))
    assert await asking == (sum(range(100_000)), "mpi")


async def a_burst_keeps_its_order_and_shares_envelopes(pair: Pair) -> None:
    comm = await pair.comm()
    if pair.serves:
        assert [await comm.read() for _ in range(3000)] == list(range(3000))
    else:
        before = counters.envelopes_sent
        for number in range(3000):
            await comm.write(number)
        assert counters.envelopes_sent - before < 300


async def small_and_large_messages_keep_their_order(pair: Pair) -> None:
    comm = await pair.comm()
    sizes = [1, 400_000, 10, 2_000_000, 100, 100, 150_000, 5] * 5
    if pair.serves:
        for size in sizes:
            await comm.write(to_serialize(np.zeros(size, dtype="u1")))
    else:
        assert [len(await comm.read()) for _ in sizes] == sizes


async def connecting_to_nobody_fails_in_time(pair: Pair) -> None:
    address = await pair.listen()
    for listener in pair._listeners:
        listener.stop()
    before = time.monotonic()
    try:
        await connect(address, timeout=0.5)
    except OSError:
        assert time.monotonic() - before < 30  # what Dask waits by itself
        return
    raise AssertionError("connected to nobody")
