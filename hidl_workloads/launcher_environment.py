"""What launchers tell each rank in its environment.

Of the variables of one list that are set, the first holds: inside a Slurm job, ranks of other launchers see the
``SLURM_*`` of what started them.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the typing module is not imported at run time: start-up time counts
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RANKS = (
    "MV2_COMM_WORLD_RANK",  # mpirun_rsh
    "OMPI_COMM_WORLD_RANK",  # mpirun, jsrun
    "JSM_NAMESPACE_RANK",  # jsrun
    "PMIX_RANK",  # srun --mpi=pmix
    "PMI_RANK",  # mpiexec, srun --mpi=pmi2
    "PALS_RANKID",  # Cray's mpiexec
    "FLUX_TASK_RANK",
    "SLURM_PROCID",  # srun
)
"""A rank's number."""

SIZES = ("MV2_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "PMI_SIZE", "FLUX_JOB_SIZE")
"""The number of ranks, where the launcher and an MPI library speak to each other."""

SIZES_OF_STEPS = (*SIZES, "SLURM_STEP_NUM_TASKS")
"""The number of ranks; srun tells it any program."""

LOCAL_RANKS = (
    "MV2_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "JSM_NAMESPACE_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
)
"""A rank's number on its node."""

LOCAL_SIZES = (
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "JSM_NAMESPACE_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PALS_LOCAL_SIZE",
)
"""The number of ranks on the node."""

OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""The same four numbers as torchrun names them; ``own_program`` sets them, and so does mpi4c10d."""

READ_BY_FRAMEWORKS = (*RANKS, *SIZES_OF_STEPS, "SLURM_NTASKS", *LOCAL_RANKS, *LOCAL_SIZES, *OF_TORCHRUN)
"""All variables by which a framework finds that its process is one of several ranks."""


def ranks_of_srun(environment: Mapping[str, str]) -> int | None:
    """Return the number of ranks on this node that srun tells, in the form ``2(x3),1``; None if it tells none."""
    node = read_number(("SLURM_NODEID",), environment)
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        ranks, _, times = part.rstrip(")").partition("(x")
        if node is None or not ranks.isdecimal() or not (times or "1").isdecimal():
            return None
        node -= int(times or "1")
        if node < 0:
            return int(ranks)
    return None


def read_number(names: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Return the first of ``names`` that is set, as a number; None if none is."""
    values = (environment[name] for name in names if name in environment)
    return next((int(value) for value in values if value.isdecimal()), None)
