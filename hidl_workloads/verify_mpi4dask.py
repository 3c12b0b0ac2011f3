"""Prove that ranks speak ``mpi://``: each sends messages to the next one, and gets them back as they were."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hidl_workloads.findings import Check

if TYPE_CHECKING:
    from mpi4py import MPI

# Sizes: empty, sent at once, and sent in pieces directly to the destination (the limits are 128 KiB and 32 MiB).
_SIZES = (0, 1000, 200_000, 40_000_000)
_SECONDS = 60


def checks(communicator: MPI.Comm) -> Iterator[Check]:
    """The messages come back, and MPI carried them: not the socket, which serves where MPI does not."""
    import mpi4dask

    mpi4dask.transport.start(communicator)
    asyncio.run(asyncio.wait_for(_exchange(communicator), _SECONDS))
    counted = mpi4dask.counters.mpi_bytes_sent
    mpi4dask.transport.stop()
    detail = f"{len(_SIZES)} messages of up to {max(_SIZES):,} bytes sent and returned, {counted:,} bytes by MPI"
    yield Check("mpi:// between ranks", counted > 2 * sum(_SIZES), detail)


async def _exchange(communicator: MPI.Comm) -> None:
    """Send to the next rank, while serving the one before. Raises ``ValueError`` for a message that was changed."""
    from distributed.comm import connect, listen

    served = []

    async def echo(comm: Any) -> None:
        served.append(comm)  # it is closed when the last reference is gone
        for _ in _SIZES:
            await comm.write(await comm.read())

    hosts = set(communicator.allgather(socket.gethostname()))
    listener = await listen("mpi://127.0.0.1:0" if len(hosts) == 1 else "mpi://0.0.0.0:0", echo)
    addresses = communicator.allgather(listener.contact_address)
    comm = await connect(addresses[(communicator.rank + 1) % communicator.size])
    for size in _SIZES:
        sent = bytes([communicator.rank + 1]) * size
        await comm.write({"sent": sent})
        if (await comm.read()) != {"sent": sent}:
            raise ValueError(f"a message of {size} bytes over mpi:// was changed on its way and back")
    # Other ranks may not be ready yet, and need the event loop that waits here.
    done = communicator.Ibarrier()
    while not done.Test():
        await asyncio.sleep(0.001)
    for each in (comm, *served):
        await each.close()
    listener.stop()
