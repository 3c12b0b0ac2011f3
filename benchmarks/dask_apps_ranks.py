"""What the ranks of ``benchmarks.dask_apps`` run, with the word ``tcp`` or ``mpi``; rank 1 prints one JSON line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from mpi4py import MPI

from hidl_workloads.dask_apps import cluster, merge, transpose, trees
from hidl_workloads.parameters import Dask

_REPEATS = 3
_FLOATS = 16 * 2**20  # 128 MiB


def main(protocol: str) -> None:
    """Bring Dask up on all ranks, measure on the client."""
    if not cluster.start(MPI.COMM_WORLD, Dask(protocol=protocol), threads=1):  # type: ignore[arg-type]
        return
    from distributed import Client

    with Client() as client:
        client.wait_for_workers(MPI.COMM_WORLD.size - cluster.OVERHEAD)
        print(json.dumps(seconds_of_each(client)), flush=True)
    cluster.close(protocol)  # type: ignore[arg-type]


def seconds_of_each(client: Any) -> dict[str, float]:
    """The median seconds of each case, after one run of it that does not count."""
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    transposed = transpose.Parameters(size=4000, chunk_size=1000)
    merged = merge.Parameters(chunk_size=500_000)
    boosted = trees.BoostingParameters(rows=100_000)
    cases: dict[str, Callable[[], float]] = {
        "128 MiB from worker to worker": lambda: _worker_to_worker(client, *workers[:2]),
        "x + x.T, 4000 x 4000 in blocks of 1000": lambda: _application(transpose, client, transposed, len(workers)),
        "merge, 500,000 rows for each worker": lambda: _application(merge, client, merged, len(workers)),
        "XGBoost, 100,000 rows for each worker": lambda: _application(trees, client, boosted, len(workers)),
        "1,000 tiny tasks": lambda: _timed(lambda: client.gather(client.map(_one_more, range(1000), pure=False))),
        "one task, there and back": lambda: median(
            _timed(lambda: client.submit(_one_more, 1, pure=False).result()) for _ in range(50)
        ),
    }
    return {name: median([case() for _ in range(1 + _REPEATS)][1:]) for name, case in cases.items()}


def _worker_to_worker(client: Any, one: str, other: str) -> float:
    import numpy as np
    from distributed import wait

    made = client.submit(np.ones, _FLOATS, workers=one, pure=False)
    wait(made)
    return _timed(lambda: client.submit(len, made, workers=other, pure=False).result())


def _application(module: Any, client: Any, parameters: Dask, workers: int) -> float:
    job = module.make(client, parameters, workers)
    return _timed(job.work)


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _one_more(number: int) -> int:
    return number + 1


if __name__ == "__main__":
    main(sys.argv[1])
