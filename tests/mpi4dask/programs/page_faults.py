"""Page faults of each end for every message of 2 MB that is echoed, as JSON by kind.

mpiexec -n 2 python page_faults.py RESULTS
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

from mpi4dask import transport
from mpi4py import MPI
from pair import Pair

SIZE = 2 << 20
MESSAGES = {
    "bytes": b"x" * SIZE,
    "bytearray": bytearray(SIZE),
    "str": "x" * SIZE,
    "bytes of 1 MB": b"x" * (SIZE // 2),
    "bytes of 8 MB": b"x" * (4 * SIZE),
}
ROUNDS = 20


def page_faults() -> int:
    """Return the number of page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


async def exchange(pair: Pair, comm: Any, message: Any, rounds: int) -> None:
    """Send the message there and back, as a server that answers with what it was sent."""
    for _ in range(rounds):
        if pair.serves:
            received = await comm.read()
            await comm.write({"x": received["x"]})
        else:
            await comm.write({"x": message})
            received = await comm.read()
            assert received["x"] == message


async def main(results: Path) -> None:
    """Count the faults after some rounds that fill the pools."""
    pair = Pair(results.parent)
    comm = await pair.comm()
    found = {}
    for name, message in MESSAGES.items():
        await exchange(pair, comm, message, ROUNDS)
        before = page_faults()
        await exchange(pair, comm, message, ROUNDS)
        faults = (page_faults() - before) / ROUNDS
        found[name] = await asyncio.to_thread(MPI.COMM_WORLD.gather, faults, 0)
    await pair.part()
    if pair.serves:
        results.write_text(json.dumps(found))


transport.start(MPI.COMM_WORLD)
asyncio.run(main(Path(sys.argv[1])))
