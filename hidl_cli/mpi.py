"""MPI libraries: the families that hidl knows, and one library as a run uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Family = Literal[
    "mvapich2",  # 2.x, open source; MV2_* variables
    "mvapich2-gdr",  # 2.x for GPUs, binary only; MV2_* variables
    "mvapich",  # 3.x and 4.x, built on MPICH; MVP_* and MPIR_CVAR_* variables
    "mvapich-plus",  # mvapich for GPUs, binary only
    "mpich",
    "cray-mpich",
    "intel-mpi",
    "openmpi",
    "spectrum-mpi",  # IBM's Open MPI
]

#: The binary interface, as mpi4py's wheels call it: programs that were built for one do not run on the other.
Abi = Literal["mpich", "openmpi"]

FAMILIES: tuple[Family, ...] = get_args(Family)


@dataclass(frozen=True)
class Library:
    """The MPI library that a run's ranks are linked to.

    ``name``: its key in the site's ``mpi``, or the stack's name where it is the stack's own. ``prefix``: where it is
    installed; None: its programs are on PATH, once ``modules`` are loaded. ``srun_mpi``: what ``srun --mpi=`` must be
    given for it. ``environment`` and ``launcher_arguments`` (by launcher) are the site's for this library.
    """

    name: str
    family: Family
    version: str | None = None
    prefix: str | None = None
    modules: tuple[str, ...] = ()
    srun_mpi: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    launcher_arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def program(self, name: str) -> str:
        """One of its programs, by its path where that is known."""
        return f"{self.prefix}/bin/{name}" if self.prefix else name
