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
