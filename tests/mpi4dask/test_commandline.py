"""`python -m mpi4dask`: dask-mpi's command line over MPI, for clients that come and go."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli import process
from tests.tiers import deep
from tests.waiting import patience
from tests.workloads import ranks

TOKEN = {"MPI4DASK_TOKEN": "of this test alone, 32 characters"}
CLIENT = """
import sys
import numpy as np
from distributed import Client
import mpi4dask
client = Client(scheduler_file=sys.argv[1])
client.wait_for_workers(2, timeout=60)
one, other = client.scheduler_info(n_workers=-1)["workers"]
made = client.submit(np.ones, 2_000_000, workers=one)
print(client.submit(len, made, workers=other).result())
print(client.run(lambda: __import__("mpi4dask").counters.mpi_bytes_received)[other])
client.shutdown()
"""
WORKER = ("--protocol", "mpi", "--worker-class", "distributed.Worker")


@pytest.mark.parametrize(
    ("command", "by_mpi"),
    [
        (("python", "-m", "mpi4dask"), True),
        (("dask-mpi", *WORKER), True),
        deep(("dask-mpi", "--protocol", "mpi"), False),  # the workers are children of Nannies
    ],
    ids=["mpi4dask", "dask-mpi", "dask-mpi with Nannies"],
)
def test_a_client_with_the_jobs_token_uses_the_cluster_and_ends_it(
    stack_prefix: Callable[[str], Path], tmp_path: Path, command: tuple[str, ...], by_mpi: bool
) -> None:
    prefix, file = stack_prefix("mpi4dask"), tmp_path / "scheduler.json"
    words = [*command[1:], "--scheduler-file", file, "--no-dashboard", "--dashboard-address", ":0"]
    environment = ranks.python_environment() | TOKEN
    job = subprocess.Popen(
        [prefix / "bin" / "mpiexec", "-n", "3", prefix / "bin" / command[0], *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = process.run(
            [prefix / "bin" / "python", "-c", CLIENT, file], env=environment, timeout=patience(90), check=False
        )
        assert client.status == 0, client.stderr
        length, received = map(int, client.stdout.split())
        assert (length, received > 16_000_000) == (2_000_000, by_mpi)
        assert job.wait(patience(60)) == 0
    finally:
        job.kill()
        job.wait()


def test_an_option_that_is_not_known_is_reported_once(stack_prefix: Callable[[str], Path]) -> None:
    completed = ranks.run(stack_prefix("mpi4dask"), 2, "-m", "mpi4dask", "--no-such-option")
    assert completed.status != 0
    assert completed.stderr.count("No such option") == 1
