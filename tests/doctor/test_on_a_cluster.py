"""A real Slurm, and a site file that asks of it what it does not offer."""

from __future__ import annotations

from collections.abc import Callable

import yaml

from tests.conftest import Hidl

SITE = ("--site", "test-cluster")


def test_a_type_of_mpi_that_srun_does_not_offer(on_cluster: Callable[..., Hidl]) -> None:
    hidl = on_cluster("mpi")
    (stack,) = hidl.json("install", "mpi", *SITE)["installations"]
    library = {"family": "mpich", "prefix": stack["prefix"], "srun_mpi": "pmix_v3"}
    keys = {"name": "test-cluster", "title": "a cluster", "extends": "test-cluster", "launchers": ["srun"]}
    file = hidl.config / "sites" / "test-cluster.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(keys | {"mpi": {"own": library}, "default_mpi": "own"}))

    stopped = hidl("run", "mpi-sanity", *SITE)

    assert (stopped.returncode, hidl.runs.exists()) == (4, False)
    assert "srun --mpi=pmix_v3 is required, but this Slurm only supports " in stopped.stderr
