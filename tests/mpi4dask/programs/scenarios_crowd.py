"""Where others want the core: nobody waits for a process that does not get it."""

from __future__ import annotations

import asyncio
import math

import numpy as np
from distributed.comm import connect
from distributed.protocol import to_serialize
from mpi4dask import counters
from mpi4dask.endpoint import endpoint
from pair import WORLD, Pair


async def what_mpi_does_not_take_at_once_is_read_from_memory(pair: Pair) -> None:
    comm = await pair.comm()
    engine = comm._engine
    readable = engine.neighbour(1 - WORLD.rank) is not None
    engine._spinner._paused_until = math.inf
    await pair.meet()
    before = counters.large_transfers_received
    try:
        for size in (10, 7_000, 9_000, 60_000, 200_000):
            await comm.write(to_serialize(np.full(size, size, dtype="u4").view("u1")[:size]))
            heard = await comm.read()
            assert heard.tobytes() == np.full(size, size, dtype="u4").tobytes()[:size]
    finally:
        engine._spinner._paused_until = 0.0
    assert counters.large_transfers_received - before == (3 if readable else 1)


async def a_doorbell_ends_a_pause(pair: Pair) -> None:
    comm = await pair.comm()
    engine = comm._engine
    for _ in range(3):
        if not engine.spin:  # one that polls is rung only when it sleeps
            engine._rise()
            engine._tick_handle = engine._tick_handle and engine._tick_handle.cancel()
            engine._schedule(3600.0)
        await pair.meet()
        await comm.write(WORLD.rank)
        assert await comm.read() == 1 - WORLD.rank


async def engines_of_loops_that_have_ended_are_forgotten(pair: Pair) -> None:
    address = await pair.share(await pair.listen() if pair.serves else None)
    known = len(peers())
    loops = 12
    if pair.serves:
        for number in range(loops):
            comm = await pair.accepted.get()
            assert await comm.read() == number
            await comm.close()
        while len(peers()) > known + 1:  # the last loop's engine closes when another is made, or at the end
            await asyncio.sleep(0.01)
    else:
        for number in range(loops):
            await asyncio.to_thread(asyncio.run, says(address, number))
    await pair.meet()
    assert len(peers()) <= known + 1
    comm = await pair.comm()
    await comm.write(WORLD.rank)
    assert await comm.read() == 1 - WORLD.rank


def peers() -> set[int]:
    """The engines that this loop's engine knows."""
    engine = endpoint().engine
    assert engine is not None
    return set(engine.peers)


async def says(address: str, number: int) -> None:
    """One message from a loop of its own, over MPI."""
    comm = await connect(address)
    assert comm.extra_info["transport"] == "mpi"
    await comm.write(number)
    await comm.close()
