"""`python -m mpi4dask`: dask-mpi's command line over MPI, for clients that come and go."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from hidl_cli import process
from tests.workloads import ranks

TOKEN = {"MPI4DASK_TOKEN": "of this test alone"}
CLIENT = """
import sys
from distributed import Client
import mpi4dask
client = Client(scheduler_file=sys.argv[1])
client.wait_for_workers(2, timeout=60)
print(sorted(info["name"] for info in client.scheduler_info(n_workers=-1)["workers"].values()))
client.shutdown()
"""


def test_a_client_with_the_jobs_token_uses_the_cluster_and_ends_it(
    stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    prefix, file = stack_prefix("mpi4dask"), tmp_path / "scheduler.json"
    words = ["-m", "mpi4dask", "--scheduler-file", file, "--no-dashboard", "--dashboard-address", ":0"]
    environment = ranks.python_environment() | TOKEN
    job = subprocess.Popen(
        [prefix / "bin" / "mpiexec", "-n", "3", prefix / "bin" / "python", *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = process.run([prefix / "bin" / "python", "-c", CLIENT, file], env=environment, timeout=90, check=False)
        assert "['dask_mpi-1', 'dask_mpi-2']" in client.stdout, client.stderr
        assert job.wait(timeout=60) == 0
    finally:
        job.kill()
        job.wait()


def test_an_option_that_is_not_known_is_told_once(stack_prefix: Callable[[str], Path]) -> None:
    completed = ranks.run(stack_prefix("mpi4dask"), 2, "-m", "mpi4dask", "--no-such-option")
    assert completed.status != 0
    assert completed.stderr.count("No such option") == 1
