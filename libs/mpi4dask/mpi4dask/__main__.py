"""`mpiexec -n 4 python -m mpi4dask [OPTIONS]`: dask-mpi's command line, over MPI.

The options are those of `dask-mpi`; two defaults are others: `--protocol mpi`, and `--worker-class distributed.Worker`,
for a Nanny's child is no rank and would talk over the socket alone.
"""

from __future__ import annotations

import sys

from mpi4dask.commandline import main

sys.exit(main(sys.argv[1:]))
