"""``srun``, the launcher of Slurm."""

from __future__ import annotations

from hidl_cli.launch.launchers.contract import Launch, Launcher, Request, mvapich2_binding
from hidl_cli.launchers import require_fit
from hidl_cli.mpi import WHEEL_OVER_PMI2, Library

#: With Open MPI 5, a rank that has left MPI_Init can send a message to a rank that has not, and crash it
#: (open-mpi/ompi#12495). This is less likely after a ring fence than after a tree fence: on 4 nodes of Slurm 22.05 with
#: Open MPI 5.0.11 over TCP, 0 of 230 starts failed with the ring, 21 of 80 with a tree and 2 of 40 with the default.
_RING_FENCE = {"SLURM_PMIX_FENCE": "ring"}


class Srun(Launcher):
    """A Slurm job step, which needs no host file and inherits the whole environment."""

    name = "srun"
    #: MPI families supported through Slurm's PMI-2 or PMIx, or through Cray's plugin.
    starts = ("mpich", "mvapich2", "mvapich2-gdr", "mvapich", "mvapich-plus", "intel-mpi", "openmpi", "cray-mpich")
    in_reframe = True

    def launch(self, request: Request) -> Launch:
        """Start the ranks as one job step.

        ``--export=ALL`` is needed in jobs submitted with ``--export=NONE``, where srun would otherwise pass on nothing.
        With ``--gpu-bind=none``, each rank sees all GPUs of its node (which direct transfers between GPUs require) and
        selects one by its local rank. The step gets the GPUs of the job by default.
        """
        require_fit(self, request.mpi)
        placement = request.placement
        argv = [
            self.name,
            f"--nodes={placement.nodes}",
            f"--ntasks={placement.ranks}",
            f"--ntasks-per-node={placement.ranks_per_node}",
        ]
        if placement.bind:
            argv += [f"--cpus-per-task={placement.threads_per_rank}", "--cpu-bind=cores"]
            # Otherwise, Slurm counts hardware threads. --hint=nomultithread has no effect together with --cpu-bind.
            argv += ["--threads-per-core=1"] if placement.node.threads_per_core > 1 else []
            argv += ["--distribution=block:block"] if _is_nearer_to_gpus_in_a_row(request) else []
        else:
            argv += ["--overcommit", "--cpu-bind=none"]
        if request.gpus:
            argv.append("--gpu-bind=none")
        mpi = mpi_type(request.mpi)
        argv += [f"--mpi={mpi}"] if mpi else []
        argv += ["--kill-on-bad-exit=1", "--export=ALL", *request.arguments_for(self.name)]
        return Launch(
            (*argv, *request.program),
            environment=mvapich2_binding(request, launcher_binds=True)
            | {key: value for key, value in _for_init(request.mpi, mpi).items() if key not in request.environment},
            host_option="--nodelist=",
            input_option="--input=0",
        )


def _is_nearer_to_gpus_in_a_row(request: Request) -> bool:
    """Return whether consecutive placement puts ranks on the sockets of their GPUs more often than Slurm's default.

    By default, Slurm alternates between sockets. GPUs are numbered socket by socket, and ranks select theirs by their
    local ranks.
    """
    placement, gpus = request.placement, request.gpus
    node, ranks, threads = placement.node, placement.ranks_per_node, placement.threads_per_rank
    sockets = node.sockets
    if gpus is None or sockets == 1 or not placement.places or placement.straddles_in_a_row:
        return False
    if "SLURM_DISTRIBUTION" in request.environment or "SLURM_DIST_PLANESIZE" in request.environment:
        return False
    wanted = [rank * gpus.per_rank % gpus.per_node * sockets // gpus.per_node for rank in range(ranks)]
    socket_of = {core: socket for socket, cores in enumerate(node.numbers_by_socket) for core in cores}
    in_a_row = [socket_of[cores[0]] for cores in node.in_a_row(ranks, threads)]
    by_turns = [rank % sockets for rank in range(ranks)]
    near = [sum(map(int.__eq__, wanted, found)) for found in (in_a_row, by_turns)]
    return near[0] > near[1]


def mpi_type(library: Library) -> str | None:
    """Return the value of ``--mpi=``, or None to use Slurm's default."""
    traits = library.traits
    if library.srun_mpi == "default" or (library.srun_mpi is None and traits.srun_mpi_is_default):
        return None
    return library.srun_mpi or traits.srun_mpi


def _for_init(library: Library, mpi: str | None) -> dict[str, str]:
    """Return the variables that the library's MPI_Init requires with this value of ``--mpi=``."""
    if library.family == "openmpi" and (mpi or "").startswith("pmix"):
        return _RING_FENCE
    if mpi == "pmi2" and {"ofi", "ucx"} <= set(library.netmods):
        return WHEEL_OVER_PMI2
    return {}
