"""What a notebook does with a cluster of its own: `python notebook.py HOW`, one JSON line about it first."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import mpi4dask


def main(how: str) -> None:
    """Start two workers, tell what they are, and end as the word says."""
    words = ("--no-such-option", "1") if how == "bad-option" else ()
    cluster = mpi4dask.LocalMPICluster(n=2, options=words)
    with cluster as client:
        print(json.dumps(told(client) | {"directory": cluster.directory}), flush=True)
        if how == "raises":
            raise LookupError("the notebook failed")
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)


def told(client: Any) -> dict[str, Any]:
    """The ranks' processes, the sum that two workers make, and the bytes that went from one to the other by MPI."""
    import numpy as np

    pids = [*client.run(os.getpid).values(), client.run_on_scheduler(os.getpid)]
    one, other = client.scheduler_info(n_workers=-1)["workers"]
    made = client.submit(np.arange, 2_000_000, workers=one)
    total = int(client.submit(np.sum, made, workers=other).result())
    by_mpi = client.run(lambda: __import__("mpi4dask").counters.mpi_bytes_received)[other]
    return {"pids": pids, "total": total, "by_mpi": by_mpi, "in_mpi": "mpi4py.MPI" in sys.modules}


if __name__ == "__main__":
    main(sys.argv[1])
