"""Send arrays from rank 1 to rank 0 over mpi://, some while others arrive; rank 1 prints what the transport counted."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import numpy as np
from distributed.protocol import to_serialize
from mpi4dask.counters import counters
from pair import WORLD, Pair

SIZES = (1, 100, 10_000, 1_000_000, 20_000_000)


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        pair = Pair(Path(directory))
        comms = await pair.comms(3)
        for size in SIZES:
            message = to_serialize(np.ones(size, np.uint8))
            if pair.serves:
                for array in await asyncio.gather(*(comm.read() for comm in comms)):
                    assert array.sum() == size
            else:
                await asyncio.gather(*(comm.write(message) for comm in comms))
        await pair.part()
        if WORLD.rank == 1:
            print(counters.mpi_bytes_sent)


asyncio.run(main())
