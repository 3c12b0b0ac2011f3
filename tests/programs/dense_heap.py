"""A program whose memory holds hardly a zero where MPI_Init will put the address of its rank."""

import ctypes
import json
import os
from pathlib import Path

_HOLES = range(24, 700, 16)  # bytes: the address fits into some of them
_WALL = 6000  # bytes: more than what is published of what lies behind it

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
noise = os.urandom(_WALL).replace(b"\0", b"\1")
holes = []
for size in _HOLES:
    for _ in range(60):
        holes.append(libc.malloc(size))
        ctypes.memmove(libc.malloc(_WALL), noise, _WALL)
for hole in holes:
    libc.free(hole)

from mpi4py import MPI  # noqa: E402 - initialises MPI

world = MPI.COMM_WORLD
size = world.allreduce(1)
if world.rank == 0:
    metrics = [{"name": "ranks", "value": size, "unit": "ranks", "samples": [size]}]
    document = {"schema": "hidl.metrics/1", "world": {"size": world.size}, "parameters": {}, "metrics": metrics}
    Path(os.environ["HIDL_METRICS"]).write_text(json.dumps(document))
