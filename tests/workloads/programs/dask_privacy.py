"""What other users of a node find of Dask's ranks: pages that answer, and the modes of the places of workers.

To be given the file for the JSON document, and the protocol.
"""

from __future__ import annotations

import json
import stat
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from distributed import Client, Worker
from mpi4py import MPI

from hidl_workloads.dask_apps import cluster
from hidl_workloads.parameters import Dask


def place(dask_worker: Worker) -> str:
    """Where a worker spills to."""
    return str(dask_worker.local_directory)


def port(dask_worker: Worker) -> int:
    """Of a worker's pages."""
    return int(dask_worker.http_server.port)


def answers(number: int, page: str) -> bool:
    """Whether a page is there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{number}/{page}", timeout=60):
            return True
    except urllib.error.HTTPError as error:
        return error.code != 404


def modes(directory: str) -> list[str]:
    """Those of the directories below the one for temporary files that hold a worker's."""
    above = [each for each in Path(directory).parents if each.name.startswith("hidl-dask-")]
    return [oct(stat.S_IMODE(each.stat().st_mode)) for each in above]


def main(result: Path, protocol: Any) -> None:
    """Look from the client."""
    if not cluster.start(MPI.COMM_WORLD, Dask(protocol=protocol), 1):
        return
    with Client() as client:
        client.wait_for_workers(1)
        ports = list(client.run(port).values())
        places = list(client.run(place).values())
        scheduler = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.port)
        pages = ("", "info/main/workers.html", "json/counts.json", "metrics", "sysmon", "health")
        found = [page for page in pages for number in (scheduler, *ports) if answers(number, page)]
    result.write_text(json.dumps({"pages": found, "modes": [modes(each) for each in places]}))
    cluster.close(protocol)


main(Path(sys.argv[1]), sys.argv[2])
