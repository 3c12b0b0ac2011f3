"""The libraries' own binding of ranks to cores, which must agree with the placement and with the launcher's.

MVAPICH2 binds each rank to one core unless it is told otherwise, whatever the launcher has bound it to before, and a
rank's threads then share that core (MVAPICH2 user guide, "Efficient Process Mapping Support").
"""

from __future__ import annotations

from hidl_cli.launch.launchers.contract import Request

_MVAPICH2_VARIABLES = (
    "MV2_ENABLE_AFFINITY",
    "MV2_CPU_BINDING_POLICY",
    "MV2_CPU_BINDING_LEVEL",
    "MV2_HYBRID_BINDING_POLICY",
    "MV2_CPU_MAPPING",
)


def mvapich2(request: Request, *, launcher_binds: bool) -> dict[str, str]:
    """The variables that make MVAPICH2 2.x keep to the placement; none for other libraries.

    None either where the request says itself how MVAPICH2 is to bind. ``launcher_binds``: the launcher has bound the
    rank already, so that MVAPICH2 is to leave it there.
    """
    if request.mpi.family not in ("mvapich2", "mvapich2-gdr"):
        return {}
    if any(name in request.environment for name in _MVAPICH2_VARIABLES):
        return {}
    if launcher_binds or not request.placement.bind:
        return {"MV2_ENABLE_AFFINITY": "0"}
    threads = {"MV2_CPU_BINDING_POLICY": "hybrid", "MV2_THREADS_PER_PROCESS": str(request.placement.threads_per_rank)}
    return {name: value for name, value in threads.items() if name not in request.environment}


def intel(request: Request) -> dict[str, str]:
    """The variables that make Intel MPI bind as the placement says; none for other libraries.

    Intel MPI Library Developer Reference, "Process Pinning": a domain of so many cores for each rank.
    """
    if request.mpi.family != "intel-mpi":
        return {}
    pinned = {"I_MPI_PIN": "1", "I_MPI_PIN_DOMAIN": f"{request.placement.threads_per_rank}:compact"}
    chosen = pinned if request.placement.bind else {"I_MPI_PIN": "0"}
    return {name: value for name, value in chosen.items() if name not in request.environment}
