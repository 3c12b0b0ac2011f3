"""Binding of ranks to cores by the MPI library itself, which must agree with the placement and the launcher's.

By default MVAPICH2 binds each rank to one core, even if the launcher has bound it to more, and the rank's threads share
that core (MVAPICH2 user guide, "Efficient Process Mapping Support").
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
    """Return the variables that make MVAPICH2 2.x bind as the placement says; none for other libraries.

    None either if the request's own variables bind, except the number of cores per rank under the policy ``hybrid``.
    ``launcher_binds``: the launcher binds the ranks, and MVAPICH2 must not.
    """
    if request.mpi.traits.binds_by != "MV2_":
        return {}
    hybrid = {"MV2_CPU_BINDING_POLICY": "hybrid", "MV2_THREADS_PER_PROCESS": str(request.placement.threads_per_rank)}
    if any(name in request.environment for name in _MVAPICH2_VARIABLES):
        asked = request.environment.get("MV2_CPU_BINDING_POLICY", "").lower()
        hybrid = hybrid if asked == "hybrid" and request.placement.bind else {}
    elif launcher_binds or not request.placement.bind:
        return {"MV2_ENABLE_AFFINITY": "0"}
    return {name: value for name, value in hybrid.items() if name not in request.environment}


def open_mpi_options(request: Request) -> tuple[str, ...]:
    """The options by which Open MPI's ``mpirun`` maps and binds ranks as the placement says.

    A rank that is alone on its node and has all its cores is not bound: PRRTE (Open MPI 5) refuses to map a rank to the
    cores of more than one package.
    """
    placement = request.placement
    each = f"ppr:{placement.ranks_per_node}:node"
    if not placement.bind:
        return ("--map-by", f"{each}:OVERSUBSCRIBE", "--bind-to", "none")
    if placement.fills_node:
        return ("--map-by", each, "--bind-to", "none")
    return ("--map-by", f"{each}:PE={placement.threads_per_rank}", "--bind-to", "core")


def open_mpi_under_ibrun(request: Request) -> dict[str, str]:
    """The variable that hands ``open_mpi_options`` on through ibrun; none for other libraries.

    ibrun passes the options in MY_OPENMPI_OPTIONS to Open MPI's mpirun and none of its own that bind (its source of
    2018: github.com/cazes/ibrun). Open MPI's parameters cannot do it: PRRTE's daemons on other hosts fail to start with
    a mapping policy in the environment (Open MPI 5.0.11).
    """
    if request.mpi.family != "openmpi" or "MY_OPENMPI_OPTIONS" in request.environment:
        return {}
    return {"MY_OPENMPI_OPTIONS": " ".join(open_mpi_options(request))}


def intel(request: Request) -> dict[str, str]:
    """The variables that make Intel MPI bind as the placement says; none for other libraries.

    Intel MPI Library Developer Reference, "Process Pinning": a domain of so many cores for each rank.
    """
    if request.mpi.traits.binds_by != "I_MPI_":
        return {}
    pinned = {"I_MPI_PIN": "1", "I_MPI_PIN_DOMAIN": f"{request.placement.threads_per_rank}:compact"}
    chosen = pinned if request.placement.bind else {"I_MPI_PIN": "0"}
    return {name: value for name, value in chosen.items() if name not in request.environment}
