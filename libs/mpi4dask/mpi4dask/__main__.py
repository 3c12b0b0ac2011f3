"""The command line of dask-mpi over MPI: `mpiexec -n 4 python -m mpi4dask [OPTIONS]`.

The options are those of `dask-mpi`, with two other defaults: `--protocol mpi` and `--worker-class distributed.Worker`,
because a Nanny's child is not a rank and could only use sockets.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

DEFAULTS = {"protocol": "mpi", "worker_class": "distributed.Worker"}


def main(arguments: Sequence[str]) -> int:
    """Run the scheduler on rank 0 and a worker on each other rank until the scheduler closes; every rank calls this.

    Return the exit status, which is 2 for invalid options; rank 0 prints the error.
    """
    import click
    from mpi4py import MPI

    from mpi4dask import monitor, parent, transport
    from mpi4dask.launch import failure_ends_all_ranks

    parent.follow_named()
    with failure_ends_all_ranks(MPI.COMM_WORLD):
        transport.start(MPI.COMM_WORLD)
        monitor.enable()
        from dask_mpi.cli import main as dask_mpi

        try:
            dask_mpi.main(list(arguments), prog_name="mpi4dask", default_map=DEFAULTS, standalone_mode=False)
        except click.ClickException as error:  # the same on all ranks
            if MPI.COMM_WORLD.Get_rank() == 0:
                error.show()
            return error.exit_code
        transport.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
