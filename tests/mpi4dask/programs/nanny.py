"""A scheduler on rank 0 and a Nanny on rank 1, whose worker is a process outside the MPI job; RESULT gets what ran."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from distributed import Client, Nanny, Scheduler
from mpi4dask import transport
from mpi4py import MPI

WORLD = MPI.COMM_WORLD if __name__ == "__main__" else None  # the Nanny's worker imports this file, without MPI


async def main() -> None:
    """Work through a Nanny's worker."""
    if WORLD.rank == 0:
        async with Scheduler(protocol="mpi", host="127.0.0.1", dashboard=False) as scheduler:
            await asyncio.to_thread(WORLD.bcast, scheduler.address)
            async with Client(scheduler.address, asynchronous=True) as client:
                await client.wait_for_workers(1)
                total = await client.submit(sum, range(1000))
                big = await client.submit(bytes, 30_000_000)
            Path(sys.argv[1]).write_text(json.dumps({"total": total, "bytes": len(big)}))
            await asyncio.to_thread(WORLD.Barrier)
    else:
        address = await asyncio.to_thread(WORLD.bcast, None)
        async with Nanny(address, nthreads=1, protocol="mpi", host="127.0.0.1"):
            await asyncio.to_thread(WORLD.Barrier)


if __name__ == "__main__":
    transport.start(WORLD)
    asyncio.run(main())
