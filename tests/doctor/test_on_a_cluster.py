"""A real Slurm, and a site file that asks of it what it does not offer."""

from __future__ import annotations

import pytest
import yaml

from tests.cluster.cluster import LivingCluster
from tests.conftest import Hidl

SITE = ("--site", "test-cluster")


@pytest.fixture
def on_cluster(cluster: LivingCluster, hidl: Hidl, tmp_path_factory: pytest.TempPathFactory) -> Hidl:
    """hidl on the cluster."""
    data = tmp_path_factory.getbasetemp() / "cluster-data"
    return Hidl(hidl.environment | cluster.environment | {"XDG_DATA_HOME": str(data)})


def test_a_type_of_mpi_that_srun_does_not_offer(on_cluster: Hidl) -> None:
    (stack,) = on_cluster.json("install", "mpi", *SITE)["installations"]
    library = {"family": "mpich", "prefix": stack["prefix"], "srun_mpi": "pmix_v3"}
    keys = {"name": "test-cluster", "title": "a cluster", "extends": "test-cluster", "launchers": ["srun"]}
    file = on_cluster.config / "sites" / "test-cluster.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(keys | {"mpi": {"own": library}, "default_mpi": "own"}))

    stopped = on_cluster("run", "mpi-sanity", *SITE)

    assert (stopped.returncode, on_cluster.runs.exists()) == (4, False)
    assert "srun --mpi=pmix_v3 is wanted; this Slurm offers " in stopped.stderr
