"""`mpiexec -n 4 python -m mpi4dask [OPTIONS]`: dask-mpi's command line, over MPI.

The options are those of `dask-mpi`; two defaults are others: `--protocol mpi`, and `--worker-class distributed.Worker`,
for a Nanny's child is no rank and would talk over the socket alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

DEFAULTS = {"protocol": "mpi", "worker_class": "distributed.Worker"}


def main(arguments: Sequence[str]) -> int:
    """Run the scheduler on rank 0 and a worker on each other rank, until the scheduler is closed; every rank calls it.

    Returns the exit status: 2 for options that are not understood, which rank 0 tells.
    """
    import click
    from mpi4py import MPI

    from mpi4dask import monitoring, parent, transport
    from mpi4dask.launch import failure_ends_all_ranks

    parent.follow_named()
    with failure_ends_all_ranks(MPI.COMM_WORLD):
        transport.start(MPI.COMM_WORLD)
        monitoring.enable()
        from dask_mpi.cli import main as dask_mpi

        try:
            dask_mpi.main(list(arguments), prog_name="mpi4dask", default_map=DEFAULTS, standalone_mode=False)
        except click.ClickException as error:  # all ranks have the same words
            if MPI.COMM_WORLD.Get_rank() == 0:
                error.show()
            return error.exit_code
        transport.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
