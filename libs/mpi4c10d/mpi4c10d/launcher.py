"""Rank and size of this process as its launcher sets them, and the command that starts it under MPI."""

from __future__ import annotations

import os
import shlex
import sys

#: Variables by launcher: rank and size. A launcher within a Slurm step (mpiexec, mpirun_rsh) precedes srun's own.
_WORLD = (
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),  # mpirun_rsh
    ("MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE"),  # mpirun_rsh of MVAPICH 4
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI, Spectrum MPI
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),  # jsrun
    ("PMI_RANK", "PMI_SIZE"),  # Hydra, Intel MPI, PALS, srun --mpi=pmi2
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),  # srun --mpi=pmix
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
)
_LOCAL_RANKS = (
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MVP_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "JSM_NAMESPACE_LOCAL_RANK",
    "MPI_LOCALRANKID",  # Hydra, Intel MPI
    "PALS_LOCAL_RANKID",
    "PMI_LOCAL_RANK",
    "SLURM_LOCALID",
    "FLUX_TASK_LOCAL_ID",
)
_LOCAL_SIZES = (
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "MVP_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "JSM_NAMESPACE_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PALS_LOCAL_SIZE",
    "PMI_LOCAL_SIZE",
)


def world() -> tuple[int, int] | None:
    """Return rank and size, or None if no MPI launcher started this process."""
    for rank, size in _WORLD:
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size])
    return None


def under_torchrun() -> bool:
    """Return True if torchrun started this process and no MPI launcher did."""
    return "TORCHELASTIC_RUN_ID" in os.environ and world() is None


def export() -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE from the launcher; variables that are set stay."""
    found = world()
    if found is None:
        return
    values = {"RANK": str(found[0]), "WORLD_SIZE": str(found[1])}
    for name, sources in (("LOCAL_RANK", _LOCAL_RANKS), ("LOCAL_WORLD_SIZE", _LOCAL_SIZES)):
        value = next((os.environ[source] for source in sources if source in os.environ), None)
        if value is not None:
            values[name] = value
    for name, value in values.items():
        os.environ.setdefault(name, value)


def command(ranks: int) -> str:
    """Return the command line that starts this program on that many ranks."""
    arguments = [argument for argument in sys.orig_argv[1:] if argument != "-u"]  # torchrun adds -u
    return shlex.join(["mpiexec", "-n", str(ranks), "python", *arguments])
