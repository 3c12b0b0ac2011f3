"""A cluster of the ranks: what it computes, by which way, and how it ends, as the first word says."""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

import mpi4dask
from mpi4py import MPI


def main(how: str) -> None:
    """Every rank calls this; the client goes on from `initialize`."""
    if how == "bad-worker":
        mpi4dask.initialize(dashboard_address=":0", worker_options={"no_such_option": 1})
    is_client = mpi4dask.initialize(dashboard_address=":0", exit=how != "returns")
    if how == "returns" and not is_client:
        print(f"rank {MPI.COMM_WORLD.rank} returned", flush=True)
        return
    from distributed import Client

    client = Client()
    client.wait_for_workers(MPI.COMM_WORLD.size - 2)
    if how == "restarts":
        try:
            client.restart()
        except mpi4dask.Mpi4DaskError as error:
            print(error, flush=True)
    print(json.dumps(seen(client)), flush=True)
    client.close()
    if how == "raises":
        raise LookupError("the client failed")
    if how == "exits":
        sys.exit(3)
    if how == "returns":
        mpi4dask.shutdown()


def seen(client: Any) -> dict[str, Any]:
    """What the cluster computes, and what its counters tell at the places where Dask shows its own."""
    import numpy as np

    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    made = client.submit(np.arange, 2_000_000, workers=workers[0])
    total = int(client.submit(np.sum, made, workers=workers[-1]).result())
    heartbeat = client.run(lambda dask_worker: {name: read(dask_worker) for name, read in dask_worker.metrics.items()})
    port = client.run_on_scheduler(lambda dask_scheduler: next(iter(dask_scheduler.services.values())).port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        metrics = page.read().decode()
    return {
        "total": total,
        "protocols": sorted({address.partition(":")[0] for address in [client.scheduler.address, *workers]}),
        "names": sorted(info["name"] for info in client.scheduler_info(n_workers=-1)["workers"].values()),
        "received": heartbeat[workers[-1]]["mpi_bytes_received"],
        "sent_by_mpi": heartbeat[workers[0]]["mpi_mpi_bytes_sent"],
        "prometheus": [line for line in metrics.splitlines() if line.startswith("dask_mpi_messages_sent_total")],
    }


if __name__ == "__main__":
    main(sys.argv[1])
