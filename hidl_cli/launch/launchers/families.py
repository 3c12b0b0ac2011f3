"""Which launcher can start the ranks of which MPI library."""

from __future__ import annotations

from collections.abc import Mapping

from hidl_cli.errors import InvalidInput
from hidl_cli.mpi import Family, Library

#: The process-management interfaces (PMI) that launcher and library must share decide this. With another launcher,
#: the ranks start as N worlds of one rank each, and end with status 0.
STARTS: Mapping[str, tuple[Family, ...]] = {
    # Hydra: each of these brings an mpiexec of its own.
    "mpiexec": ("mpich", "mvapich2", "mvapich2-gdr", "mvapich", "mvapich-plus", "intel-mpi"),
    # Open MPI's own runtime (ORTE, PRRTE).
    "mpirun": ("openmpi", "spectrum-mpi"),
    # A part of MVAPICH2 2.x; MVAPICH 3.0 and later are built on MPICH 4 and are started by its Hydra.
    "mpirun_rsh": ("mvapich2", "mvapich2-gdr"),
    # Slurm's PMI-2, PMIx, or Cray's plugin.
    "srun": ("mpich", "mvapich2", "mvapich2-gdr", "mvapich", "mvapich-plus", "intel-mpi", "openmpi", "cray-mpich"),
    # TACC's wrapper starts the libraries that TACC's modules offer.
    "ibrun": ("mvapich2", "mvapich2-gdr", "mvapich", "mvapich-plus", "intel-mpi", "openmpi"),
    # IBM's Job Step Manager speaks PMIx; MVAPICH2 needs a PMI library over it (pmi4pmix).
    "jsrun": ("spectrum-mpi", "mvapich2", "mvapich2-gdr"),
}


def fitting(family: Family) -> tuple[str, ...]:
    """The launchers that can start ranks of ``family``."""
    return tuple(launcher for launcher, families in STARTS.items() if family in families)


def require_fit(launcher: str, library: Library) -> None:
    """``InvalidInput`` where ``launcher`` cannot start the ranks of ``library``."""
    if library.family not in STARTS[launcher]:
        raise InvalidInput(
            f"launcher {launcher} cannot start the ranks of {library.name} ({library.family}): "
            "each would be alone in a world of its own",
            hint=f"launchers that can: {', '.join(fitting(library.family))}",
        )
