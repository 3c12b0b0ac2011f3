"""Environment variables in which launchers describe each rank.

Of the variables of one list that are set, the first holds: inside a Slurm job, ranks of other launchers see the
``SLURM_*`` of what started them.
"""

from __future__ import annotations

import os

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

NODES = ("NODE_RANK", "GROUP_RANK")
"""A rank's node: as Lightning and accelerate name it, and as torchrun does."""

OF_THIS_RANK = "HIDL_RANK"
"""The rank that ``own_program`` has started, which the check of the framework's world reads."""

READ_BY_FRAMEWORKS = (
    *RANKS,
    *SIZES_OF_STEPS,
    "SLURM_NTASKS",
    *LOCAL_RANKS,
    *LOCAL_SIZES,
    *OF_TORCHRUN,
    *NODES,
    "TF_CONFIG",
    OF_THIS_RANK,
)
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


_LONGEST = 1 << 16
"""Characters of a variable's value; Linux limits it to 128 KiB."""

_FAMILIES = (
    ("MV2_COMM_WORLD_", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("JSM_NAMESPACE_", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("PMIX_", "PMIX_RANK", ""),
    ("PMI_", "PMI_RANK", "PMI_SIZE"),
    ("PALS_", "PALS_RANKID", ""),
    ("FLUX_TASK_", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
)
"""The prefix of each launcher's variables, and its rank and size."""


def of_other_launchers(environment: Mapping[str, str], rank: int, size: int) -> list[str]:
    """Return the variables of launchers that describe another rank or size: this one did not set them."""
    found: list[str] = []
    for prefix, *names in _FAMILIES:
        pairs = zip(names, (rank, size), strict=True)
        values = [(read_number((name,), environment), value) for name, value in pairs if name in environment]
        if any(value != expected for value, expected in values):
            found += [name for name in environment if name.startswith(prefix)]
    return found


def correct_slurm(
    environment: Mapping[str, str], variables: Mapping[str, str], hosts: Sequence[str], ranks_per_node: int
) -> dict[str, str | None]:
    """Return the variables of a Slurm step that describe this rank, with None for those to remove.

    Ranks of ``mpiexec`` and ``mpirun`` inherit the variables of the step that started the launcher's daemons, in which
    each daemon is a task, or those of the job's script. Lightning and JAX read them. Nothing is changed if srun has
    started this rank.

    Args:
        environment: The environment of this rank.
        variables: The rank's numbers as torchrun names them.
        hosts: The hosts of the launch, in the order of the ranks.
        ranks_per_node: Number of ranks on a full node.
    """
    rank, size = variables["RANK"], variables["WORLD_SIZE"]
    if "SLURM_JOB_ID" not in environment:
        return {}
    if (environment.get("SLURM_PROCID"), environment.get("SLURM_STEP_NUM_TASKS")) == (rank, size):
        return {}
    full, rest = divmod(int(size), ranks_per_node)
    repeated = f"{ranks_per_node}(x{full})" if full > 1 else str(ranks_per_node)
    ranks_of_nodes = ",".join([*([repeated] if full else []), *([str(rest)] if rest else [])])
    nodes = str(full + bool(rest))
    names = ",".join(hosts)
    return {
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": variables.get("LOCAL_RANK"),
        "SLURM_NODEID": variables.get("GROUP_RANK"),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), size),
        "SLURM_NTASKS_PER_NODE": str(ranks_per_node),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), ranks_of_nodes),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_NODELIST", "SLURM_STEP_NODELIST"), names if 0 < len(names) < _LONGEST else None),
        "SLURM_TASK_PID": str(os.getpid()),
        "SLURM_GTIDS": None,
        **{name: None for name in ("SLURM_CPU_BIND", "SLURM_MPI_TYPE") if environment.get(name) == "none"},
    }


def tensorflow_cluster(
    variables: Mapping[str, str], hosts: Sequence[str], ranks_per_node: int, first_port: int
) -> str | None:
    """Return ``TF_CONFIG``, by which ``MultiWorkerMirroredStrategy`` finds the other ranks.

    It is None for one rank, for very many, and if the ranks are not placed on the hosts in blocks: TensorFlow then
    trains in each rank alone, which the check of the framework's world reports.

    Args:
        variables: The rank's numbers as torchrun names them.
        hosts: The hosts of the launch, in the order of the ranks.
        ranks_per_node: Number of ranks on a full node.
        first_port: Port of the first rank of each node.
    """
    import json

    rank, size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
    if size == 1 or len(hosts) * ranks_per_node < size or str(rank // ranks_per_node) != variables.get("GROUP_RANK"):
        return None
    workers = [f"{hosts[each // ranks_per_node]}:{first_port + each % ranks_per_node}" for each in range(size)]
    text = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    return text if len(text) <= _LONGEST else None
