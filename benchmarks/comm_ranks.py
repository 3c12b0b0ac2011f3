"""The ranks of `benchmarks.comm`: mpi:// and tcp:// in turn, and ucx:// where it is installed, within one run.

    mpiexec -n RANKS python comm_ranks.py RESULT messages|types|oversubscribed|crowd|idle

Ranks of the lower half listen, those of the upper half connect, each to one other. The last rank writes
{figure: {scheme: [seconds of each round]}} as JSON, one way.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

if importlib.util.find_spec("distributed_ucxx"):
    import ucxx  # noqa: F401 - before MPI, whose wheels bring an older UCX that it cannot be loaded behind

import numpy as np
from distributed.comm import Comm, connect, listen
from distributed.protocol import to_serialize
from mpi4dask import transport
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
HALF = WORLD.size // 2
SERVES = WORLD.rank < HALF
OTHER = WORLD.rank + HALF if SERVES else WORLD.rank - HALF
SCHEMES = ("mpi", "tcp")
UCX = ("ucx",) if "ucxx" in sys.modules else ()
ROUNDS = 7

Measure = Callable[[Comm], Awaitable[float]]
Figures = dict[str, dict[str, list[float]]]


def array(size: int) -> Any:
    """Bytes in a NumPy array, sent as they are."""
    return to_serialize(np.ones(size, dtype="u1"))


MESSAGES: dict[str, tuple[Any, int]] = {
    "bytes 1 B": (b"x", 300),
    "bytes 1 KB": (b"x" * 1024, 300),
    "bytes 64 KB": (b"x" * 65536, 200),
    "NumPy 64 KB": (array(1 << 16), 150),
    "NumPy 2 MB": (array(2 << 20), 40),
    "NumPy 16 MB": (array(16 << 20), 8),
    "NumPy 64 MB": (array(64 << 20), 4),
}


def of_types() -> dict[str, tuple[Any, int]]:
    """Messages of each type by size: {type and size: message, turns}."""
    import pandas
    import pyarrow

    def nested(size: int) -> Any:
        return [[number, [number / 2, f"key {number}"]] for number in range(max(1, size // 40))]

    def objects(size: int) -> Any:
        return to_serialize(np.array([f"row {number}" for number in range(max(1, size // 20))], dtype=object))

    makers: dict[str, tuple[Callable[[int], Any], int]] = {
        "bytes": (lambda size: b"x" * size, 256 << 20),
        "bytearray": (bytearray, 256 << 20),
        "memoryview": (lambda size: memoryview(bytearray(size)), 256 << 20),
        "str": (lambda size: "x" * size, 16 << 20),
        "serialized bytes": (lambda size: to_serialize(b"x" * size), 256 << 20),
        "NumPy": (array, 256 << 20),
        "NumPy, Fortran order": (lambda size: to_serialize(np.ones((-(-size // 8), 8), "u1", order="F")), 16 << 20),
        "NumPy, strided": (lambda size: to_serialize(np.ones((size, 2), "u1")[:, 0]), 16 << 20),
        "NumPy, objects": (objects, 16 << 20),
        "pandas": (lambda size: to_serialize(pandas.DataFrame({"a": np.ones(-(-size // 8)), "b": 1})), 256 << 20),
        "Arrow": (lambda size: to_serialize(pyarrow.table({"a": np.ones(-(-size // 8))})), 256 << 20),
        "nested lists": (nested, 16 << 20),
    }
    sizes = {"1 B": 1, "1 KB": 1 << 10, "64 KB": 1 << 16, "2 MB": 2 << 20, "16 MB": 16 << 20, "256 MB": 256 << 20}
    return {
        f"{kind} {name}": (make(size), max(1, min(100, (32 << 20) // size)))
        for kind, (make, most) in makers.items()
        for name, size in sizes.items()
        if size <= most
    }


async def together() -> None:
    """Go on when all ranks are here; no loop stops."""
    await asyncio.to_thread(WORLD.Barrier)


async def connections(scheme: str, count: int) -> list[Comm]:
    """So many between this rank and its other."""
    accepted: asyncio.Queue[Comm] = asyncio.Queue()
    if SERVES:
        listener = await listen(f"{scheme}://127.0.0.1:0", accepted.put)
        await asyncio.to_thread(WORLD.send, listener.contact_address, OTHER)
        comms = [await accepted.get() for _ in range(count)]
        listener.stop()
        return comms
    address = await asyncio.to_thread(WORLD.recv, None, OTHER)
    return [await connect(address) for _ in range(count)]


ECHOES: dict[str, tuple[int, int]] = {
    "bytes 64 KB": (1 << 16, 200),
    "bytes 2 MB": (2 << 20, 40),
    "bytes 8 MB": (8 << 20, 16),
}


def echo(size: int, turns: int) -> Measure:
    """Return a measure of bytes in a message that are sent back as they were received.

    The answer is made while the received bytes still exist, as in a server: this needs more memory at a time than
    a constant answer, and new memory costs page faults.
    """
    data = os.urandom(size)

    async def measure(comm: Comm) -> float:
        times = []
        for _ in range(turns):
            before = time.perf_counter()
            if SERVES:
                received = await comm.read()
                await comm.write({"data": received["data"]})
            else:
                await comm.write({"data": data})
                received = await comm.read()
            times.append(time.perf_counter() - before)
        assert SERVES or received["data"] == data
        return statistics.median(times) / 2

    return measure


def ping_pong(message: Any, turns: int) -> Measure:
    """The median time of a message one way."""

    async def measure(comm: Comm) -> float:
        times = []
        for _ in range(turns):
            before = time.perf_counter()
            if SERVES:
                await comm.read()
                await comm.write(message)
            else:
                await comm.write(message)
                await comm.read()
            times.append(time.perf_counter() - before)
        return statistics.median(times) / 2

    return measure


async def burst(comm: Comm) -> float:
    """5,000 small messages one way, and an answer."""
    before = time.perf_counter()
    if SERVES:
        for _ in range(5000):
            await comm.read()
        await comm.write("all")
    else:
        for number in range(5000):
            await comm.write(number)
        await comm.read()
    return time.perf_counter() - before


async def in_turn(measures: dict[str, Measure], comms: dict[str, Comm]) -> Figures:
    """Each measure on each scheme, interleaved; the first round is not counted. Of 256 MB there are fewer rounds."""
    figures: Figures = {}
    for name, measure in measures.items():
        seen: dict[str, list[float]] = {scheme: [] for scheme in comms}
        for _ in range((4 if "256 MB" in name else ROUNDS) + 1):
            for scheme, comm in comms.items():
                await together()
                seen[scheme].append(await measure(comm))
        figures[name] = {scheme: values[1:] for scheme, values in seen.items()}
    return figures


async def idle_share(scheme: str) -> float:
    """CPU time over wall time of this process with ten idle connections, in 10 s."""
    comms = await connections(scheme, 10)
    await together()
    await asyncio.sleep(1)
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.sleep(10)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    await together()
    for comm in comms:
        await comm.close()
    return share


async def main(result: Path, what: str) -> None:
    """Measure what was asked for."""
    figures: Figures
    if what == "idle":
        figures = {"idle CPU": {scheme: [await idle_share(scheme)] for scheme in SCHEMES}}
    else:
        idle = [await connections(scheme, 200) for scheme in SCHEMES] if what == "crowd" else []
        schemes = (*SCHEMES, *UCX) if what == "messages" else SCHEMES
        comms = {scheme: (await connections(scheme, 1))[0] for scheme in schemes}
        messages = of_types() if what == "types" else MESSAGES
        pings = {name: ping_pong(message, turns) for name, (message, turns) in messages.items()}
        measures: dict[str, Measure] = pings
        if what == "crowd":
            measures = {"beside 200 idle": pings["bytes 1 KB"], "burst of 5,000": burst}
        elif what in ("messages", "types"):
            measures |= {f"echoed {name}": echo(size, turns) for name, (size, turns) in ECHOES.items()}
        figures = await in_turn(measures, comms)
        await together()
        for comm in [*comms.values(), *(comm for many in idle for comm in many)]:
            await comm.close()
    if WORLD.rank == WORLD.size - 1:
        result.write_text(json.dumps(figures))
    await together()


cores = sorted(os.sched_getaffinity(0))
if WORLD.size <= len(cores):
    os.sched_setaffinity(0, {cores[WORLD.rank]})
transport.start(WORLD)
asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
