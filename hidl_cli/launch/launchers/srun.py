"""``srun``: Slurm itself starts the ranks."""

from __future__ import annotations

from hidl_cli.launch.launchers import affinity
from hidl_cli.launch.launchers.contract import Launch, Launcher, Request
from hidl_cli.launchers import require_fit
from hidl_cli.mpi import WHEEL_OVER_PMI2, Library

#: A rank of Open MPI 5 that has left MPI_Init crashes one that has not, by its first message, in as much time as Slurm
#: takes to tell all nodes that all are there (open-mpi/ompi#12495). Around a ring that is less than down a tree: on 4
#: nodes of Slurm 22.05, Open MPI 5.0.11 over TCP, none of 230 starts failed, 21 of 80 with a tree, 2 of 40 by default.
_TOGETHER = {"SLURM_PMIX_FENCE": "ring"}


class Srun(Launcher):
    """A step of the job; it needs no host file, and passes the whole environment on."""

    name = "srun"
    #: By Slurm's PMI-2, PMIx, or Cray's plugin.
    starts = ("mpich", "mvapich2", "mvapich2-gdr", "mvapich", "mvapich-plus", "intel-mpi", "openmpi", "cray-mpich")
    in_reframe = True

    def launch(self, request: Request) -> Launch:
        """See ``Launcher.launch``.

        ``--export=ALL``: where the job was submitted with ``--export=NONE``, srun would pass on nothing.
        ``--gpu-bind=none``: each rank sees all GPUs of its node, as the libraries' direct transfers between them need,
        and takes its own by its local rank. The step gets the GPUs of the job by default.
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
            # Slurm counts hardware threads otherwise. --hint=nomultithread has no effect beside --cpu-bind.
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
            environment=affinity.mvapich2(request, launcher_binds=True)
            | {name: value for name, value in _for_init(request.mpi, mpi).items() if name not in request.environment},
            host_option="--nodelist=",
            input_option="--input=0",
        )


def _is_nearer_to_gpus_in_a_row(request: Request) -> bool:
    """Return whether ranks are on the sockets of their GPUs more often in a row than by turns, Slurm's default.

    GPUs are numbered socket by socket. Ranks take theirs by their local ranks.
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
    """Return the type of ``--mpi=``; None: it is left out, and Slurm's own default holds."""
    traits = library.traits
    if library.srun_mpi == "default" or (library.srun_mpi is None and traits.srun_mpi_is_default):
        return None
    return library.srun_mpi or traits.srun_mpi


def _for_init(library: Library, mpi: str | None) -> dict[str, str]:
    """What the library needs to get through MPI_Init with this type of ``--mpi=``."""
    if library.family == "openmpi" and (mpi or "").startswith("pmix"):
        return _TOGETHER
    if mpi == "pmi2" and {"ofi", "ucx"} <= set(library.netmods):
        return WHEEL_OVER_PMI2
    return {}
