"""Random messages, closes, aborts, cancels and reconnects between ranks for a while, every payload checked.

    mpiexec -n RANKS python soak.py SECONDS

At the end nothing may have been lost, no message may have been without its doorbell for `peer.SAFETY` after an
engine's own look found it, and memory, tags, channels and file descriptors are where they were after the first tenth of
the time; each rank prints its figures, and the exit status says whether they hold. A machine with so much to do that
loops are held up for longer than that may delay a doorbell, too: each rank says how often its own was.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from distributed.comm import Comm, CommClosedError, connect, listen
from distributed.protocol import to_serialize
from mpi4dask import counters, transport
from mpi4dask.endpoint import current_world, endpoint
from mpi4dask.peer import SAFETY
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
TICK = 0.05  # seconds between two looks at the clock
LAG = 60.0  # seconds; a connection whose peer has closed it, and which is open after that, is left for ever
SIZES = (0, 1, 100, 5_000, 60_000, 131_000, 140_000, 1_000_000, 9_000_000)
SMALL = (0, 100, 5_000, 30_000)  # no frame of such a message travels alone


def payload(rng: random.Random) -> dict[str, Any]:
    """An array, or up to 40 small ones, and the digest of their bytes."""
    sizes = [rng.choice(SMALL) for _ in range(rng.randrange(2, 40))] if rng.random() < 0.1 else [rng.choice(SIZES)]
    data = [np.frombuffer(rng.randbytes(size), dtype="u1") for size in sizes]
    return {"data": [to_serialize(part) for part in data], "digest": digest(data)}


def digest(data: Iterable[Any]) -> str:
    """Of the bytes of arrays."""
    return hashlib.sha1(b"".join(part.tobytes() for part in data)).hexdigest()


def check(message: dict[str, Any]) -> None:
    """The bytes are those that were sent."""
    assert digest(message["data"]) == message["digest"], "a payload came damaged"


serving: set[asyncio.Task[Any]] = set()


async def serve(comm: Comm) -> None:
    """Send back whatever comes, until the peer has gone."""
    task = asyncio.current_task()
    assert task is not None
    serving.add(task)
    task.add_done_callback(serving.discard)
    try:
        while True:
            message = await comm.read()
            check(message)
            await comm.write({**message, "data": [to_serialize(part) for part in message["data"]]})
    except CommClosedError:
        comm.abort()


async def talk(rng: random.Random, addresses: list[str], until: float) -> int:
    """One connection after another: echoes, a cancelled read here and there, and one of three ends."""
    connections = 0
    while time.monotonic() < until:
        comm = await connect(rng.choice(addresses))
        connections += 1
        sent = []
        for _ in range(rng.randrange(12)):
            message = payload(rng)
            sent.append(message["digest"])
            await comm.write(message)
            if rng.random() < 0.2:
                reading = asyncio.ensure_future(comm.read())
                await asyncio.sleep(0)
                reading.cancel()
                await asyncio.wait([reading])
                if not reading.cancelled():
                    assert reading.result()["digest"] == sent.pop(0)
        end = rng.choice(("answers", "answers", "close", "abort"))
        if end == "answers":
            for digest in sent:
                message = await comm.read()
                check(message)
                assert message["digest"] == digest, "a message was lost or came out of turn"
        if end == "abort":
            comm.abort()
        else:
            await comm.close()
    return connections


def holdings() -> dict[str, int]:
    """What must not grow."""
    engine, world = endpoint().engine, current_world()
    assert engine is not None
    assert world is not None
    status = Path("/proc/self/status").read_text()
    return {
        "MiB": int(status.split("VmRSS:")[1].split()[0]) >> 10,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "tags": 31744 - world.free_transfer_tags,
        "channels": engine.open_channels,
    }


async def spell(addresses: list[str], seconds: float, seed: int) -> int:
    """Some talkers at once, then quiet."""
    until = time.monotonic() + seconds
    talkers = [talk(random.Random(seed * 1000 + WORLD.rank * 10 + one), addresses, until) for one in range(4)]
    count = sum(await asyncio.gather(*talkers))
    await asyncio.to_thread(WORLD.Barrier)
    if serving:  # what was sent before a close is still being read
        await asyncio.wait(serving, timeout=LAG)
    await asyncio.sleep(2 * SAFETY + 0.5)  # what a look finds counts as rescued by the first look after SAFETY
    return count


class Watch:
    """How often this loop was held up for as long as a doorbell may take, and how long at most, in seconds.

    What has been sent in one turn of the loop has its doorbell in the next one at the latest: two turns count.
    """

    def __init__(self) -> None:
        self.times = 0
        self.longest = 0.0

    async def keep(self) -> None:
        """Look on until cancelled."""
        first = second = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            self.times += now - first > SAFETY
            self.longest = max(self.longest, now - first)
            first, second = second, now


async def main(seconds: float) -> int:
    """Return the exit status."""
    listener = await listen("mpi://127.0.0.1:0", serve)
    addresses = await asyncio.to_thread(WORLD.allgather, listener.contact_address)
    watch = Watch()
    watching = asyncio.ensure_future(watch.keep())
    await spell(addresses, seconds / 10, 1)
    before = holdings()
    count = await spell(addresses, seconds * 0.9, 2)
    after = holdings()
    watching.cancel()
    print(
        f"rank {WORLD.rank}: {count} connections; {before} -> {after}; {counters}; its loop was held up for more than "
        f"{SAFETY:g} s {watch.times} times, for {watch.longest:.2f} s at most",
        flush=True,
    )
    grown = after["MiB"] > before["MiB"] + 256 or after["tags"] or after["channels"] > before["channels"]
    grown = grown or after["descriptors"] > before["descriptors"] + 2
    return 1 if grown or counters.rescues else 0


transport.start(WORLD)
sys.exit(asyncio.run(main(float(sys.argv[1]))))
