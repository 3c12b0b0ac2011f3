"""Time that MPI takes to start (``init``), and a test that it starts (``hello``)."""

from __future__ import annotations

from time import perf_counter

from hidl_workloads import metrics
from hidl_workloads.metrics import Metric
from hidl_workloads.omb import output
from hidl_workloads.omb.benchmark import Benchmark, title
from hidl_workloads.omb.options import Options


def init(benchmark: Benchmark, options: Options) -> int:
    """Print the least, most and mean time of ``MPI_Init_thread`` among the ranks; returns the exit status.

    The import of mpi4py lies outside of the time. OMB prints whole milliseconds; the metrics have the rest.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    if MPI.Is_initialized():
        raise RuntimeError("init measures MPI_Init and cannot run if MPI is already initialised")
    start = perf_counter()
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    milliseconds = (perf_counter() - start) * 1e3
    world = MPI.COMM_WORLD
    everyone = world.allgather(milliseconds)
    least, most, mean = min(everyone), max(everyone), sum(everyone) / len(everyone)
    if world.rank == 0:
        head = title(benchmark, options)
        told = f"nprocs: {world.size}, min: {int(least)} ms, max: {int(most)} ms, avg: {int(mean)} ms"
        output.say(head + told)
    found = [
        Metric("init_avg", mean, "ms", everyone),
        Metric("init_min", least, "ms", [least]),
        Metric("init_max", most, "ms", [most]),
    ]
    metrics.report(world, program="omb init", parameters={}, versions={}, metrics=found)
    MPI.Finalize()
    return 0


def hello(benchmark: Benchmark, options: Options) -> int:
    """Print the number of ranks; returns the exit status."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.rank == 0:
        output.say(f"{title(benchmark, options)}This is a test with {world.size} processes")
    metrics.report(
        world,
        program="omb hello",
        parameters={},
        versions={},
        metrics=[Metric("ranks", world.size, "ranks", [world.size])],
    )
    return 0


BENCHMARKS = (
    Benchmark("init", "MPI Init Test", None, "startup", "", (), run=init),
    Benchmark("hello", "MPI Hello World Test", None, "startup", "", (), run=hello),
)
