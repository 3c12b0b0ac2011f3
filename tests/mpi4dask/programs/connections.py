"""Very many connections between two ranks: at once, and one after another.

    mpiexec -n 2 python connections.py COUNT SECONDS

COUNT connections are open at once, and each carries a message both ways; then they are opened and closed one by one for
SECONDS. At the end descriptors, tags and inboxes are as few as at the beginning; else the exit status is 1.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path

from distributed.comm import Comm, CommClosedError
from mpi4dask import transport
from mpi4dask.endpoint import current_world, endpoint
from pair import WORLD, Pair

BATCH = 50


def holdings() -> tuple[int, int, int]:
    """Open descriptors, large transfers that could start, and open inboxes."""
    engine, world = endpoint().engine, current_world()
    assert engine is not None
    assert world is not None
    return len(list(Path("/proc/self/fd").iterdir())), world.free_transfer_tags, engine.open_channels


async def answer(comm: Comm, done: asyncio.Event) -> None:
    """Give one message back, and read until the peer has closed; "done" is the last one of all."""
    try:
        message = await comm.read()
        await comm.write(message)
        await comm.read()
    except CommClosedError:
        await comm.close()
    if message == "done":
        done.set()


async def ask(comm: Comm, message: int | str) -> None:
    """The message that comes back is the one that was sent."""
    await comm.write(message)
    assert await comm.read() == message


async def at_once(pair: Pair, address: str, count: int) -> None:
    """Open them in batches, use each, and close them."""
    comms: list[Comm] = []
    for start in range(0, count, BATCH):
        comms += await asyncio.gather(*(pair.connect(address) for _ in range(min(BATCH, count - start))))
    await asyncio.gather(*(ask(comm, number) for number, comm in enumerate(comms)))
    print(f"{count} connections at once, {holdings()}", flush=True)
    for comm in comms:
        await comm.close()
    pair._comms.clear()


async def one_by_one(pair: Pair, address: str, seconds: float) -> None:
    """Open, use and close, as often as time allows."""
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        comm = await pair.connect(address)
        await ask(comm, number)
        await comm.close()
        pair._comms.clear()
        number += 1
    print(f"{number} connections one after another in {seconds:g} s, {holdings()}", flush=True)


async def serve(pair: Pair) -> None:
    """Answer on each connection until the other rank is done."""
    done = asyncio.Event()
    ending = asyncio.ensure_future(done.wait())
    answering: set[asyncio.Task[None]] = set()
    while not done.is_set():
        taking = asyncio.ensure_future(pair.accepted.get())
        await asyncio.wait([taking, ending], return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            task = asyncio.ensure_future(answer(taking.result(), done))
            answering.add(task)
            task.add_done_callback(answering.discard)
            pair._comms.clear()
        else:
            taking.cancel()
    await asyncio.gather(*answering)


async def main(count: int, seconds: float) -> int:
    """Return the exit status."""
    pair = Pair(Path())
    address = await pair.share(await pair.listen() if pair.serves else None)
    before = holdings()
    if pair.serves:
        await serve(pair)
    else:
        await at_once(pair, address, count)
        await one_by_one(pair, address, seconds)
        last = await pair.connect(address)
        await ask(last, "done")
        await last.close()
    await pair.part()
    after = holdings()
    print(f"rank {WORLD.rank}: {before} -> {after}", flush=True)
    return int(after[0] > before[0] + 5 or after[1:] != before[1:])


_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
transport.start(WORLD)
sys.exit(asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]))))
