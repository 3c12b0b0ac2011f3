"""What Python adds to a message, part by part: ``mpiexec -n 2 python benchmarks/omb_parts.py LIBRARY``.

``LIBRARY`` is pingpong.c as a shared library. Rank 0 prints one JSON object: microseconds, medians of interleaved rounds.
"""

from __future__ import annotations

import ctypes
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from mpi4py import MPI

from hidl_workloads.omb import output
from hidl_workloads.omb.benchmark import Point
from hidl_workloads.omb.latency import ping_pong
from hidl_workloads.omb.options import Options

ROUNDS, CALLS, LARGE = 11, 20_000, 1 << 20

Part = Callable[[int], float]


def main(library: str) -> None:
    """Measure every part in turn, ``ROUNDS`` times."""
    world = MPI.COMM_WORLD
    pingpong = ctypes.CDLL(library)
    for function in (pingpong.ping_pong, pingpong.send_to_nobody):
        function.restype = ctypes.c_double
    parts: dict[str, Part] = {
        "C, 8 B": lambda calls: pingpong.ping_pong(8, calls, calls // 10),
        "Python, 8 B": _latency(8),
        "C, 1 MB": lambda calls: pingpong.ping_pong(LARGE, calls // 50, calls // 500),
        "Python, 1 MB": _fewer(_latency(LARGE), 50),
        "send to nobody, C": lambda calls: pingpong.send_to_nobody(calls),
        **{f"send to nobody, {name}": part for name, part in _sends().items()},
        "loop": _timed(None),
        "method without arguments": _timed(world.Get_rank),
        "C function, lock kept": _timed(ctypes.PyDLL(library).nothing),
        "C function, lock given back and taken": _timed(pingpong.nothing),
    }
    samples: dict[str, list[float]] = {name: [] for name in parts}
    gc.disable()
    for _ in range(ROUNDS):
        for name, part in parts.items():
            world.Barrier()
            samples[name].append(part(CALLS))
    if world.rank == 0:
        print(json.dumps({name: statistics.median(found) for name, found in samples.items()}))


def _latency(size: int) -> Part:
    """One way of our own ping-pong."""
    (datatype,) = output.datatypes(Options())
    point = Point(MPI.COMM_WORLD, Options(), datatype, size, 0, 0)
    exchange = ping_pong(point, 1 - MPI.COMM_WORLD.rank)

    def measure(calls: int) -> float:
        exchange.repeat(calls // 10)
        MPI.COMM_WORLD.Barrier()
        start = MPI.Wtime()
        exchange.repeat(calls)
        return (MPI.Wtime() - start) * 1e6 / 2 / calls

    return measure


def _fewer(part: Part, divisor: int) -> Part:
    return lambda calls: part(calls // divisor)


def _sends() -> dict[str, Part]:
    """A send to nobody, by what is given as the buffer."""
    import numpy as np

    array = np.zeros(8, "u1")
    return {
        "(array, count, type)": _sending((array, 8, MPI.CHAR)),
        "(memoryview, count, type)": _sending((memoryview(array), 8, MPI.CHAR)),
        "array": _sending(array),
        "pickled": _sending(bytearray(8), MPI.COMM_WORLD.send),
    }


def _sending(message: Any, send: Callable[..., Any] = MPI.COMM_WORLD.Send) -> Part:
    nobody = MPI.PROC_NULL

    def measure(calls: int) -> float:
        start = time.perf_counter()
        for _ in repeat(None, calls):
            send(message, nobody, 1)
        return (time.perf_counter() - start) * 1e6 / calls

    return measure


def _timed(function: Callable[[], Any] | None) -> Part:
    def measure(calls: int) -> float:
        start = time.perf_counter()
        if function is None:
            for _ in repeat(None, calls):
                pass
        else:
            for _ in repeat(None, calls):
                function()
        return (time.perf_counter() - start) * 1e6 / calls

    return measure


if __name__ == "__main__":
    main(sys.argv[1])
