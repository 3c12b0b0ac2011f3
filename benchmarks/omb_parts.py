"""What Python adds to a message, part by part: ``mpiexec -n 2 python benchmarks/omb_parts.py LIBRARY``.

``LIBRARY`` is pingpong.c as a shared library. Rank 0 prints one JSON object: for each part its microseconds in each of
``ROUNDS`` interleaved rounds. C and Python send from and receive into the very same memory: where it lies makes more of
a difference at 1 MB than the language does.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from mpi4py import MPI

from hidl_workloads.omb import buffers, output
from hidl_workloads.omb.benchmark import Point
from hidl_workloads.omb.latency import ping_pong_in
from hidl_workloads.omb.options import Options

ROUNDS, CALLS, LARGE = 101, 5_000, 1 << 20
INTERPRETER = 128
"""Lines of memory that C reads before each call of MPI, to lose at 8 B what Python does."""

Part = Callable[[int], float]


def main(library: str) -> None:
    """Measure every part in turn, ``ROUNDS`` times."""
    world = MPI.COMM_WORLD
    pingpong = ctypes.CDLL(library)
    pingpong.ping_pong.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *4 * [ctypes.c_int]]
    for function in (pingpong.ping_pong, pingpong.send_to_nobody):
        function.restype = ctypes.c_double
    parts: dict[str, Part] = {
        **_latencies("8 B", 8, pingpong, 1),
        **_latencies("1 MB", LARGE, pingpong, 50),
        **_latencies("8 B, NumPy", 8, pingpong, 1, "numpy"),
        **_latencies("1 MB, NumPy", LARGE, pingpong, 50, "numpy"),
        "send to nobody, C": pingpong.send_to_nobody,
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
        print(json.dumps(samples))


def _latencies(name: str, size: int, pingpong: Any, fewer: int, kind: str = "bytearray") -> dict[str, Part]:
    """One way of the ping-pong in C and of our own, in the same memory, with a ``fewer``-th of the calls."""
    (datatype,) = output.datatypes(Options())
    point = Point(MPI.COMM_WORLD, Options(), datatype, size, 0, 0)
    sent, received = (buffers.allocate(kind, size) for _ in range(2))
    exchange = ping_pong_in(sent, received, point, 1 - MPI.COMM_WORLD.rank)
    addresses = [buffer.read(size).ctypes.data for buffer in (sent, received)]

    def c(calls: int, lines: int = 0) -> float:
        return float(pingpong.ping_pong(*addresses, size, calls // fewer, calls // fewer // 10, lines))

    def chasing(calls: int) -> float:
        return c(calls, INTERPRETER)

    def python(calls: int) -> float:
        calls //= fewer
        exchange.repeat(calls // 10)
        MPI.COMM_WORLD.Barrier()
        start = MPI.Wtime()
        exchange.repeat(calls)
        return (MPI.Wtime() - start) * 1e6 / 2 / calls

    return {f"C, {name}": c, f"C, {name}, {INTERPRETER} lines": chasing, f"Python, {name}": python}


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
