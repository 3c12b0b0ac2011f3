"""Binding of ranks to cores by the MPI library itself, which must agree with the placement and the launcher's.

By default MVAPICH2 binds each rank to one core, even if the launcher has bound it to more, and the rank's threads share
that core (MVAPICH2 user guide, "Efficient Process Mapping Support").
"""

from __future__ import annotations

from hidl_cli.launch.launchers.contract import Request
from hidl_cli.launch.placement import Placement, ranges

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
    placement = request.placement
    hybrid = {"MV2_CPU_BINDING_POLICY": "hybrid", "MV2_THREADS_PER_PROCESS": str(placement.threads_per_rank)}
    ranks, node = placement.ranks_per_node, placement.node
    if placement.straddles_in_a_row and ranks % node.sockets == 0 and (node.cores or 0) % ranks == 0:
        # Each rank begins at its share of the node, so none straddles if the sockets hold whole shares.
        hybrid["MV2_HYBRID_BINDING_POLICY"] = "spread"
    if any(name in request.environment for name in _MVAPICH2_VARIABLES):
        asked = request.environment.get("MV2_CPU_BINDING_POLICY", "").lower()
        hybrid = hybrid if asked == "hybrid" and placement.bind else {}
    elif launcher_binds or not placement.bind:
        return {"MV2_ENABLE_AFFINITY": "0"}
    return {name: value for name, value in hybrid.items() if name not in request.environment}


#: Start mpirun with a file of the cores of each rank: HOSTFILE CORES-OF-EACH-LOCAL-RANK RANKS MPIRUN ARGUMENT...
_WITH_RANKFILE = """
rank=0
while read -r host _; do
    for cores in $2; do
        if ((rank < $3)); then
            echo "rank $((rank++))=$host slot=$cores"
        fi
    done
done < "$1" > "$1.ranks"
case $("$4" --version) in
    *"(Open MPI) "[1-4].*) how=(--rankfile "$1.ranks") ;;
    *) how=(--map-by "rankfile:file=$1.ranks") ;;
esac
exec "$4" "${how[@]}" "${@:5}"
"""


def open_mpi_needs_rankfile(placement: Placement) -> bool:
    """Return whether a rank may straddle sockets: PRRTE (Open MPI 5) maps such a rank by a rankfile alone."""
    node, ranks, threads = placement.node, placement.ranks_per_node, placement.threads_per_rank
    fits = not placement.places or (node.fits_in_sockets(ranks, threads) if node.knows_sockets else threads == 1)
    return placement.bind and not placement.fills_node and not fits


def open_mpi_rankfile(request: Request, mpirun: str) -> tuple[str, ...]:
    """Return the words that start ``mpirun`` with a rankfile, which is written beside the host file at run time."""
    placement = request.placement
    places = " ".join(map(ranges, placement.places))
    return ("bash", "-c", _WITH_RANKFILE.strip(), "bash", request.hostfile, places, str(placement.ranks), mpirun)


def open_mpi_options(request: Request) -> tuple[str, ...]:
    """The options by which Open MPI's ``mpirun`` maps and binds ranks as the placement says.

    They do not hold where ``open_mpi_needs_rankfile``. A rank that is alone on its node and has all its cores is
    not bound: PRRTE (Open MPI 5) refuses to map a rank to the cores of more than one package.
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
    options = open_mpi_options(request)
    if open_mpi_needs_rankfile(request.placement):
        # ibrun names the hosts itself: no rankfile can. Unbound ranks start, bound ones would not.
        options = ("--map-by", f"ppr:{request.placement.ranks_per_node}:node", "--bind-to", "none")
    return {"MY_OPENMPI_OPTIONS": " ".join(options)}


def intel(request: Request) -> dict[str, str]:
    """The variables that make Intel MPI bind as the placement says; none for other libraries.

    Intel MPI Library Developer Reference, "Process Pinning": a domain of so many cores for each rank, in a row or by
    turns on the sockets.
    """
    if request.mpi.traits.binds_by != "I_MPI_":
        return {}
    placement = request.placement
    sockets = placement.node.sockets
    layout = "compact"
    if placement.straddles_in_a_row:
        # With ``scatter``, its proxy crashes (2021.19) if more than one socket gets a rank more than the others, and
        # more than one does not.
        crashes = 1 < placement.ranks_per_node % sockets < sockets - 1
        layout = "platform" if crashes else "scatter"
    domain = f"{placement.threads_per_rank}:{layout}"
    # By the reference, a domain is counted in hardware threads unless the cell is a core.
    pinned = {"I_MPI_PIN": "1", "I_MPI_PIN_CELL": "core", "I_MPI_PIN_DOMAIN": domain}
    chosen = pinned if placement.bind else {"I_MPI_PIN": "0"}
    return {name: value for name, value in chosen.items() if name not in request.environment}
