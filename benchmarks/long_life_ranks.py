"""What two ranks keep of client loops, or of connections of one loop, after so many of them.

``mpiexec -n 2 python long_life_ranks.py RESULT loops|connections FEW MANY``
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
from pathlib import Path
from typing import Any

from distributed.comm import Comm, CommClosedError, connect, listen
from mpi4dask import transport
from mpi4dask.endpoint import endpoint
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
LOOK = 1.2  # seconds, after which an engine that sleeps has looked


async def answer(comm: Comm) -> None:
    """Give messages back until the other end closes."""
    while True:
        try:
            await comm.write(await comm.read())
        except CommClosedError:
            await comm.close()
            return


async def ask(address: str) -> None:
    """One message and its answer, from this loop."""
    comm = await connect(address)
    await comm.write("a message")
    assert await comm.read() == "a message"
    await comm.close()


def resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def serve(counts: list[int]) -> list[dict[str, Any]]:
    """Listen while the other rank connects; the figures after each count of its loops."""
    listener = await listen("mpi://127.0.0.1:0", answer)
    WORLD.bcast(listener.contact_address, root=0)
    figures = []
    for _ in counts:
        theirs = await asyncio.to_thread(WORLD.recv)
        await asyncio.sleep(LOOK)
        engine = endpoint().engine
        assert engine is not None
        files, threads = (len(list(Path("/proc/self", name).iterdir())) for name in ("fd", "task"))
        found = {"peers": len(engine.peers), "listening": resident(), "connecting": theirs}
        figures.append(found | {"files": files, "threads": threads})
        WORLD.send("go on", 1)
    return figures


def loops(counts: list[int]) -> None:
    """As many loops in all as each count says, one after another, of one connection each."""
    address = WORLD.bcast(None, root=0)
    done = 0
    for count in counts:
        while done < count:
            asyncio.run(ask(address))
            done += 1
        WORLD.send(resident(), 0)
        WORLD.recv()


async def connections(counts: list[int]) -> None:
    """As many connections in all as each count says, one after another, of one loop."""
    address = WORLD.bcast(None, root=0)
    done = 0
    for count in counts:
        while done < count:
            await ask(address)
            done += 1
        await asyncio.to_thread(WORLD.send, resident(), 0)
        await asyncio.to_thread(WORLD.recv)


transport.start(WORLD)
wanted = [int(word) for word in sys.argv[3:]]
if WORLD.rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(asyncio.run(serve(wanted))))
elif sys.argv[2] == "loops":
    loops(wanted)
else:
    asyncio.run(connections(wanted))
