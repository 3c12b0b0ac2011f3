"""Rank 0 sends rank 1 one array of 2.5 GiB; the exit status says whether it came as it was sent."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
from distributed.protocol import to_serialize
from mpi4dask import counters, transport
from pair import WORLD, Pair

NUMBERS = 5 << 26


async def main() -> bool:
    """Return whether this rank is content."""
    pair = Pair(Path())
    comm = await pair.comm()
    if pair.serves:
        await comm.write(to_serialize(np.arange(NUMBERS)))
        right = await comm.read() == "thanks"
    else:
        heard = await comm.read()
        steps = (np.diff(heard[start : start + (1 << 20) + 1]) for start in range(0, NUMBERS, 1 << 20))
        right = len(heard) == NUMBERS and heard[0] == 0 and all((step == 1).all() for step in steps)
        print(f"right: {right}; {counters}", flush=True)
        await comm.write("thanks")
    await pair.part()
    return bool(right)


transport.start(WORLD)
sys.exit(not asyncio.run(main()))
