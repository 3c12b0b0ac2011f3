"""A program of no MPI job that holds the job's token: sends messages to ADDRESS and checks that they come back."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
from distributed.comm import connect
from distributed.protocol import to_serialize


async def main() -> None:
    """Four messages of very different sizes."""
    comm = await connect(sys.argv[1])
    assert comm.extra_info["transport"] == "socket"
    for size in (1, 50_000, 3_000_000, 20):
        await comm.write([to_serialize(np.arange(size)), "end"])
        heard, end = await comm.read()
        assert np.array_equal(heard, np.arange(size))
        assert end == "end"
    await comm.close()
    print("all came back")


asyncio.run(main())
