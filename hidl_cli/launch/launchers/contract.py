"""The interface of launchers: a request for ranks, the launch that starts them, and the settings that bind ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from hidl_cli.launch.placement import Placement, ranges
from hidl_cli.launchers import LauncherTraits
from hidl_cli.mpi import Library

#: Variables for a launcher that starts its daemons through srun. In a job with --threads-per-core=1, srun would bind
#: the daemons to one core. With MpiDefault=pmix or pmi2, srun would set variables that the ranks inherit from the
#: daemons: MPICH 5 then fails in MPI_Init ("Found both env vars PMI_SIZE and PMIX_NAMESPACE", pmodels/mpich#7957).
DAEMONS_OF_SRUN = {"SLURM_CPU_BIND": "none", "SLURM_MPI_TYPE": "none"}


@dataclass(frozen=True)
class Gpus:
    """The number of GPUs per node and per rank; ``per_rank`` is 1 if several ranks share a GPU."""

    per_node: int
    per_rank: int

    @classmethod
    def of(cls, per_node: int | None, ranks_per_node: int) -> Gpus | None:
        """Divide a node's GPUs among its ranks; return None if it has no GPUs or their number is unknown."""
        return cls(per_node, max(1, per_node // ranks_per_node)) if per_node else None


@dataclass(frozen=True)
class Request:
    """A request to start ``program`` on every rank of ``placement``.

    Attributes:
        environment: Variables for every rank (tuning and threads).
        forward: Names of variables that the job script sets at run time (PATH, HIDL_METRICS, ...). Every rank must
            receive those that are set.
        hostfile: File with the hosts of this step in the format of ``Launch.host_line``, relative to the run directory.
        on_one_host: Whether the allocation is this machine, without a scheduler.
        through_ssh: Whether the allocation consists of hosts without a scheduler.
        gpus: GPUs of the nodes; None if they have no GPUs or none are requested.
    """

    placement: Placement
    program: tuple[str, ...]
    mpi: Library
    environment: Mapping[str, str] = field(default_factory=dict)
    forward: tuple[str, ...] = ()
    hostfile: str = "hosts"
    on_one_host: bool = False
    through_ssh: bool = False
    gpus: Gpus | None = None

    @property
    def shares_gpus(self) -> bool:
        """True if a full node has fewer GPUs than ranks."""
        return self.gpus is not None and self.placement.ranks_per_node * self.gpus.per_rank > self.gpus.per_node

    @property
    def fills_nodes(self) -> bool:
        """True if all nodes have the same number of ranks."""
        return self.placement.ranks == self.placement.nodes * self.placement.ranks_per_node

    def arguments_for(self, launcher: str) -> tuple[str, ...]:
        """Return the additional arguments that the site sets for ``launcher`` and this library."""
        return tuple(self.mpi.launcher_arguments.get(launcher, ()))


@dataclass(frozen=True)
class Launch:
    """The command with which the job script starts the ranks: ``argv``, run with ``environment`` added.

    Attributes:
        forwarded: Names of variables that the script inserts between ``argv`` and ``rest`` if they are set at run time,
            as ``NAME=value`` quoted for a remote shell, or as ``forward_option`` and the name.
        rest: The end of the command, which is empty unless variables are forwarded.
        host_line: Format of a line of the host file.
        status_on_stderr: Whether the launcher only exits with 0 or 1, in which case the script reads the ranks' exit
            status from stderr.
        host_option: Beginning of an option that ends with a host name (``--nodelist=``) and restricts one of several
            simultaneous launches to this host. It is empty if the host file does this, and None if this is unsupported.
        input_option: Option that passes standard input to rank 0 only, or None if the launcher does so by default.
        preloaded_by: Variable in which the script exports the path of the MPI library's ``libmpi.so``, which it finds
            at run time.
    """

    argv: tuple[str, ...]
    forwarded: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    host_line: str = "{host}"
    status_on_stderr: bool = False
    forward_option: str | None = None
    host_option: str | None = None
    input_option: str | None = None
    preloaded_by: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The command as shown to users before the job runs."""
        return (*self.argv, *self.rest)


class Launcher(LauncherTraits, ABC):
    """A launcher that starts a program on every rank of a placement."""

    @abstractmethod
    def launch(self, request: Request) -> Launch:
        """Return the command for the request; raises ``InvalidInput`` if this launcher does not support it."""


_MVAPICH2_VARIABLES = (
    "MV2_ENABLE_AFFINITY",
    "MV2_CPU_BINDING_POLICY",
    "MV2_CPU_BINDING_LEVEL",
    "MV2_HYBRID_BINDING_POLICY",
    "MV2_CPU_MAPPING",
)


def mvapich2_binding(request: Request, *, launcher_binds: bool) -> dict[str, str]:
    """Return the variables with which MVAPICH2 2.x binds ranks to the placement's cores (none for other libraries).

    By default, MVAPICH2 binds each rank to a single core, which all threads of the rank then share, even if the
    launcher has bound the rank to several (MVAPICH2 user guide, "Efficient Process Mapping Support").

    If the request's environment already sets a binding, only the number of cores per rank is added, and only to the
    policy ``hybrid``. With ``launcher_binds``, the launcher binds the ranks and MVAPICH2's binding is disabled.
    """
    if request.mpi.traits.binds_by != "MV2_":
        return {}
    placement = request.placement
    hybrid = {"MV2_CPU_BINDING_POLICY": "hybrid", "MV2_THREADS_PER_PROCESS": str(placement.threads_per_rank)}
    ranks, node = placement.ranks_per_node, placement.node
    if placement.straddles_in_a_row and ranks % node.sockets == 0 and (node.cores or 0) % ranks == 0:
        # "spread" divides the node evenly among the ranks. Because each socket has a whole number of these shares, no
        # rank straddles sockets.
        hybrid["MV2_HYBRID_BINDING_POLICY"] = "spread"
    if any(name in request.environment for name in _MVAPICH2_VARIABLES):
        policy = request.environment.get("MV2_CPU_BINDING_POLICY", "").lower()
        hybrid = hybrid if policy == "hybrid" and placement.bind else {}
    elif launcher_binds or not placement.bind:
        return {"MV2_ENABLE_AFFINITY": "0"}
    return {name: value for name, value in hybrid.items() if name not in request.environment}


#: Writes a rankfile and starts mpirun with it. Arguments: HOSTFILE CORES-OF-EACH-LOCAL-RANK RANKS MPIRUN ARGUMENT...
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
    """Return whether a rank may straddle sockets, which PRRTE (Open MPI 5) only supports through a rankfile."""
    node, ranks, threads = placement.node, placement.ranks_per_node, placement.threads_per_rank
    fits = not placement.places or (node.fits_in_sockets(ranks, threads) if node.knows_sockets else threads == 1)
    return placement.bind and not placement.fills_node and not fits


def open_mpi_rankfile(request: Request, mpirun: str) -> tuple[str, ...]:
    """Return the command that writes a rankfile beside the host file and starts ``mpirun`` with it."""
    placement = request.placement
    places = " ".join(map(ranges, placement.places))
    return ("bash", "-c", _WITH_RANKFILE.strip(), "bash", request.hostfile, places, str(placement.ranks), mpirun)


def open_mpi_options(request: Request) -> tuple[str, ...]:
    """Return the options with which Open MPI's ``mpirun`` maps and binds ranks to the placement's cores.

    A rank that uses all cores of its node is not bound, because PRRTE (Open MPI 5) refuses to map a rank to the cores
    of several packages. Placements for which ``open_mpi_needs_rankfile`` is true need a rankfile instead.
    """
    placement = request.placement
    each = f"ppr:{placement.ranks_per_node}:node"
    if not placement.bind:
        return ("--map-by", f"{each}:OVERSUBSCRIBE", "--bind-to", "none")
    if placement.fills_node:
        return ("--map-by", each, "--bind-to", "none")
    return ("--map-by", f"{each}:PE={placement.threads_per_rank}", "--bind-to", "core")


def open_mpi_under_ibrun(request: Request) -> dict[str, str]:
    """Return the variable with which ibrun passes ``open_mpi_options`` to Open MPI (none for other libraries).

    ibrun passes MY_OPENMPI_OPTIONS to Open MPI's mpirun and adds no binding options itself (source of 2018:
    github.com/cazes/ibrun). Open MPI's MCA parameters are no alternative: with a mapping policy in the environment,
    PRRTE's daemons fail to start on other hosts (Open MPI 5.0.11).
    """
    if request.mpi.family != "openmpi" or "MY_OPENMPI_OPTIONS" in request.environment:
        return {}
    options = open_mpi_options(request)
    if open_mpi_needs_rankfile(request.placement):
        # A rankfile cannot be written because ibrun chooses the hosts. Without one, bound ranks would fail to start.
        options = ("--map-by", f"ppr:{request.placement.ranks_per_node}:node", "--bind-to", "none")
    return {"MY_OPENMPI_OPTIONS": " ".join(options)}


def intel_binding(request: Request) -> dict[str, str]:
    """Return the variables with which Intel MPI binds ranks to the placement's cores (none for other libraries).

    Each rank gets a domain of as many cores as it has threads, consecutive or distributed over the sockets (Intel MPI
    Library Developer Reference, "Process Pinning").
    """
    if request.mpi.traits.binds_by != "I_MPI_":
        return {}
    placement = request.placement
    sockets = placement.node.sockets
    layout = "compact"
    if placement.straddles_in_a_row:
        # Intel MPI 2021.19 crashes with "scatter" if at least two sockets get an extra rank and at least two do not.
        crashes = 1 < placement.ranks_per_node % sockets < sockets - 1
        layout = "platform" if crashes else "scatter"
    domain = f"{placement.threads_per_rank}:{layout}"
    # According to this reference, I_MPI_PIN_DOMAIN counts hardware threads unless I_MPI_PIN_CELL is ``core``.
    pinned = {"I_MPI_PIN": "1", "I_MPI_PIN_CELL": "core", "I_MPI_PIN_DOMAIN": domain}
    chosen = pinned if placement.bind else {"I_MPI_PIN": "0"}
    return {name: value for name, value in chosen.items() if name not in request.environment}
