"""Two ranks that talk over mpi://, and tell each other what they need over MPI itself.

Not by mpi4py's `allreduce` of objects: its first one duplicates the communicator, a collective call, without giving
back the interpreter's lock (4.1). Where the other rank still waits for a message of this one, both wait for ever.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from distributed.comm import Comm, connect, listen
from mpi4py import MPI

WORLD = MPI.COMM_WORLD


class Pair:
    """Rank 0 listens, rank 1 connects; `here` is this end of the first connection."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.serves = WORLD.rank == 0
        self.accepted: asyncio.Queue[Comm] = asyncio.Queue()
        self._comms: list[Comm] = []
        self._listeners: list[Any] = []

    async def listen(self, **args: Any) -> str:
        """Listen in this process; comms come into `accepted`. Return the address."""
        listener = await listen("mpi://127.0.0.1:0", self._accept, **args)
        self._listeners.append(listener)
        return str(listener.contact_address)

    async def _accept(self, comm: Comm) -> None:
        self._comms.append(comm)
        await self.accepted.put(comm)

    async def connect(self, address: str, **args: Any) -> Comm:
        """Connect, and remember to close."""
        comm = await connect(address, **args)
        self._comms.append(comm)
        return comm

    async def comm(self, listen_args: dict[str, Any] | None = None, **args: Any) -> Comm:
        """One connection between the ranks; each gets its end."""
        address = await self.share(await self.listen(**(listen_args or {})) if self.serves else None)
        return await self.accepted.get() if self.serves else await self.connect(address, **args)

    async def comms(self, count: int) -> list[Comm]:
        """Many connections, opened at once; the ends are in any order."""
        address = await self.share(await self.listen() if self.serves else None)
        if self.serves:
            return [await self.accepted.get() for _ in range(count)]
        return list(await asyncio.gather(*(self.connect(address) for _ in range(count))))

    async def share(self, value: Any, root: int = 0) -> Any:
        """What the root rank says, on both."""
        return await asyncio.to_thread(WORLD.bcast, value, root)

    async def meet(self) -> None:
        """Go on when both ranks are here."""
        await asyncio.to_thread(WORLD.Barrier)

    async def part(self) -> None:
        """Close what is open, on both ranks."""
        await self.meet()
        for listener in self._listeners:
            listener.stop()
        for comm in self._comms:
            await asyncio.wait_for(comm.close(), 20)
        await self.meet()
