"""Start a program that chooses its GPU by its local rank, and knows the variables of few launchers for that.

::

    srun -n 2 python -m hidl_workloads.local_rank COMMAND [ARG...]

The process becomes COMMAND (``execvp``), with the rank's number on its node as ``MPI_LOCALRANKID`` where the launcher
tells it by another name. The OSU Micro-Benchmarks 7.4 take srun's ``SLURM_PROCID`` for it, the rank among all: one rank
on each of two nodes would use the first GPU of one node and the second of the other.
"""

from __future__ import annotations

import os
import sys

from hidl_workloads import killed_ranks, launcher_environment

_VARIABLE = "MPI_LOCALRANKID"  # set by MPICH's and Intel MPI's launchers
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127


def main(command: list[str]) -> int:
    """Become the program; returns an exit status only if that fails."""
    local_rank = launcher_environment.read_number(launcher_environment.LOCAL_RANKS, os.environ)
    if local_rank is not None:
        os.environ.setdefault(_VARIABLE, str(local_rank))
    killed_ranks.remove_shared_memory(os.environ)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"hidl: {command[0]}: {error.strerror} on {os.uname().nodename}", file=sys.stderr)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
