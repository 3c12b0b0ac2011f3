"""Rank 1 of a cluster of scheduler, two workers and a client kills itself; the others go on and do its work again.

    mpiexec --enable-recovery -n 4 python dead_rank.py RESULT

Rank 3 holds ten connections to rank 1, sees all of them close, and writes that and the work's result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from distributed import Client, Scheduler, Worker
from distributed.comm import CommClosedError, connect
from mpi4dask import transport
from mpi4dask.endpoint import endpoint
from mpi4py import MPI

WORLD = MPI.COMM_WORLD


def slow_square(number: int) -> int:
    """A task that is still running when its worker dies."""
    time.sleep(0.02)
    return number * number


async def share(value: Any, root: int = 0) -> Any:
    """What the root rank says, without stopping this rank's loop."""
    return await asyncio.to_thread(WORLD.bcast, value, root)


async def watch(address: str, count: int) -> list[Any]:
    """Open connections whose ends are awaited."""
    comms = [await connect(address) for _ in range(count)]
    return [asyncio.ensure_future(comm.read()) for comm in comms]


async def as_client(result: Path, scheduler: str, victim: str) -> None:
    async with Client(scheduler, asynchronous=True) as client:
        await client.wait_for_workers(2)
        reads = await watch(victim, 10)
        futures = client.map(slow_square, range(80), pure=False)
        await futures[3]
        pid = await client.run(os.getpid, workers=[victim])
        os.kill(pid[victim], signal.SIGKILL)
        ends = await asyncio.wait_for(asyncio.gather(*reads, return_exceptions=True), 30)
        total = sum(await client.gather(futures))
        seen = {"total": total, "closed": sum(isinstance(end, CommClosedError) for end in ends)}
        result.write_text(json.dumps(seen))
        await client.shutdown()


async def drain() -> None:
    """Return when MPI has all that this rank has sent: what it has not, is lost with a rank that does not finalize."""
    engine = endpoint().engine
    while engine is not None and engine._awake:
        await asyncio.sleep(0.01)


async def main() -> None:
    """Each rank its part."""
    rank = WORLD.rank
    if rank == 0:
        async with Scheduler(protocol="mpi", host="127.0.0.1", dashboard=False) as scheduler:
            await share(scheduler.address)
            await share(None, 1)
            await scheduler.finished()
    else:
        scheduler_address = await share(None)
        if rank == 3:
            await as_client(Path(sys.argv[1]), scheduler_address, await share(None, 1))
        else:
            worker = await Worker(scheduler_address, nthreads=1, protocol="mpi", host="127.0.0.1")
            await share(worker.address if rank == 1 else None, 1)
            await worker.finished()
    await asyncio.wait([asyncio.ensure_future(drain())], timeout=10)
    os._exit(0)  # MPI_Finalize would wait for the dead


transport.start(WORLD)
asyncio.run(main())
