"""The run of a program: Dask starts on all ranks, its client measures, and rank 0 reports."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from hidl_workloads import arguments
from hidl_workloads.dask_apps import cluster
from hidl_workloads.dask_apps.devices import NoDevice, arrays, chosen
from hidl_workloads.dask_apps.figures import ClientMeasurements, figures
from hidl_workloads.dask_apps.job import Job, WrongResult
from hidl_workloads.dask_apps.transfers import gather, take
from hidl_workloads.metrics import report
from hidl_workloads.parameters import Dask
from hidl_workloads.world import failure_ends_all_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

AnyParameters = TypeVar("AnyParameters", bound=Dask)
Make = Callable[[Any, AnyParameters, int], Job]

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def main(name: str, kind: type[AnyParameters], make: Make[AnyParameters]) -> None:
    """Run the program with the parameters in ``sys.argv``; every rank calls this. A failure ends all ranks."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    with failure_ends_all_ranks():
        least = cluster.OVERHEAD + 1
        if world.size < least:
            _refuse(
                world, f"{name}: Dask requires at least {least} ranks (scheduler, client, workers), not {world.size}"
            )
        try:
            parameters = _parse(kind)
        except ValueError as error:
            _refuse(world, f"{name}: {error}")
        try:
            _run(world, name, parameters, make)
        except (NoDevice, WrongResult) as error:
            sys.exit(f"{name}: {error}")


def _parse(kind: type[AnyParameters]) -> AnyParameters:
    """The parameters in ``sys.argv``. Raises ``ValueError`` for those that have no meaning."""
    from dask.utils import parse_bytes

    parameters = arguments.parse(kind, sys.argv[1:])
    try:
        parse_bytes(parameters.ignore_size)
    except ValueError:
        raise ValueError(f"ignore_size must be a size such as 1MiB, not {parameters.ignore_size!r}") from None
    return parameters


def _refuse(world: MPI.Comm, why: str) -> None:
    """End all ranks for a reason that all of them know; rank 0 says it."""
    if world.rank == 0:
        sys.stderr.write(f"{why}\n")
        sys.stderr.flush()
    world.Barrier()  # otherwise, the message would be lost among those about the other ranks' ends
    sys.exit(1 if world.rank == 0 else 0)


def _run(world: MPI.Comm, name: str, parameters: AnyParameters, make: Make[AnyParameters]) -> None:
    threads = parameters.worker_threads or int(os.environ.get("OMP_NUM_THREADS") or 1)
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")  # otherwise, each start and stop is logged
    if threads > 1:  # a worker's threads share its cores, and libraries that start their own would compete for them
        os.environ |= dict.fromkeys(_THREADS, "1")
    measured = None
    if cluster.start(world, parameters, threads):
        measured = _measure(world.size - cluster.OVERHEAD, parameters, make)
        cluster.close(parameters.protocol)
    measured = world.bcast(measured, cluster.CLIENT)
    assert measured is not None
    workers = world.size - cluster.OVERHEAD
    if world.rank == 0:
        took = median(measured.seconds)
        print(
            f"{name} over {parameters.protocol}, {workers} worker(s) of {threads} thread(s): {took:.3f} s", flush=True
        )
    report(
        world,
        program=name,
        parameters=asdict(parameters),
        versions=measured.versions,
        metrics=figures(measured, workers),
    )


def _measure(workers: int, parameters: AnyParameters, make: Make[AnyParameters]) -> ClientMeasurements:
    """Make the data, do the work on them and check what comes out, on the client."""
    import dask
    import distributed
    from dask.utils import parse_bytes

    ignore = parse_bytes(parameters.ignore_size)
    dask.config.set({"dataframe.backend": "cudf" if chosen() == "gpu" else "pandas"})
    seconds, transfers = [], []
    with distributed.Client() as client:
        client.wait_for_workers(workers)
        before, size = _by_mpi(client, parameters), 0
        for number in range(parameters.warmup + parameters.runs):
            _forget(client)
            job = make(client, parameters, workers)
            client.run(take)
            start = time.perf_counter()
            result = job.work()
            took = time.perf_counter() - start
            transferred = gather(client.run(take), ignore)
            if number < parameters.warmup:
                before = _by_mpi(client, parameters)
            else:
                seconds.append(took)
                transfers.append(transferred)
            job.check(result)
            size = job.bytes
            del job, result
        by_mpi = None if before is None else (_by_mpi(client, parameters) or 0) - before
    library = arrays(chosen())
    versions = {"dask": dask.__version__, "distributed": distributed.__version__}
    return ClientMeasurements(
        tuple(seconds), tuple(transfers), size, by_mpi, {**versions, library.__name__: library.__version__}
    )


def _forget(client: Any) -> None:
    """Let the cluster forget the last run: workers keep copies of what they were sent, and nothing is computed again
    that somebody still holds."""
    gc.collect()
    client.sync(asyncio.sleep, 0)  # the client's loop has already been notified that the results were released
    if client.futures:
        raise RuntimeError(f"{len(client.futures)} results are still held, so the next run would not compute them")


def _by_mpi(client: Any, parameters: Dask) -> int | None:
    """The bytes that all workers have sent through MPI so far."""
    if parameters.protocol != "mpi":
        return None
    return sum(int(sent) for sent in client.run(_sent_by_mpi).values())


def _sent_by_mpi() -> int:
    import mpi4dask

    return int(mpi4dask.counters.mpi_bytes_sent)
