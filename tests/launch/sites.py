"""A site for the tests of this package, any of its keys changed."""

from __future__ import annotations

from typing import Any

from hidl_cli.site.schema import Site


def site(**keys: Any) -> Site:
    """A Slurm site with two partitions of nodes with 8 cores and 4 GPUs, and two MPI libraries."""
    document: dict[str, Any] = {
        "name": "s",
        "title": "a site",
        "scheduler": "slurm",
        "launchers": ["srun", "mpiexec", "mpirun_rsh"],
        "node_types": {"n": {"cores": 8, "gpus": 4, "memory_gib": 64.0}},
        "partitions": {
            "p": {"node_type": "n", "max_nodes": 4, "max_wall": "00:30:00", "charge": 3.0},
            "large": {"node_type": "n", "min_nodes": 3, "max_wall": "2-00:00:00", "queue": "batch", "qos": "big"},
        },
        "default_partition": "p",
        "mpi": {
            "mv2": {"family": "mvapich2-gdr", "version": "2.3.7", "modules": ["mv2"], "launchers": ["mpirun_rsh"]},
            "ompi": {"family": "openmpi", "prefix": "/opt/ompi", "srun_mpi": "pmix"},
        },
    }
    return Site.model_validate(document | keys)
