"""``srun``: Slurm itself starts the ranks."""

from __future__ import annotations

from hidl_cli.launch.launchers import affinity
from hidl_cli.launch.launchers.contract import Launch, Request
from hidl_cli.launch.launchers.families import require_fit
from hidl_cli.mpi import Library

#: Where the site does not say. MPICH speaks PMI-1 and PMI-2 unless it was built for PMIx; Open MPI 5 speaks PMIx only.
#: Cray's library finds its own plugin, which the site's Slurm takes by default.
_PMI = {"openmpi": "pmix", "cray-mpich": None}

#: A rank of Open MPI 5 that has left MPI_Init crashes one that has not, by its first message, in as much time as Slurm
#: takes to tell all nodes that all are there (open-mpi/ompi#12495). Around a ring that is less than down a tree: on 4
#: nodes of Slurm 22.05, Open MPI 5.0.11 over TCP, none of 230 starts failed, 21 of 80 with a tree, 2 of 40 by default.
_TOGETHER = {"SLURM_PMIX_FENCE": "ring"}


class Srun:
    """A step of the job; it needs no host file, and passes the whole environment on."""

    name = "srun"

    def launch(self, request: Request) -> Launch:
        """See ``Launcher.launch``.

        ``--export=ALL``: where the job was submitted with ``--export=NONE``, srun would pass on nothing.
        ``--gpu-bind=none``: each rank sees all GPUs of its node, as the libraries' direct transfers between them need,
        and takes its own by its local rank. The step has the GPUs of the job without being told.
        """
        require_fit(self.name, request.mpi)
        placement = request.placement
        argv = [
            self.name,
            f"--nodes={placement.nodes}",
            f"--ntasks={placement.ranks}",
            f"--ntasks-per-node={placement.ranks_per_node}",
        ]
        if placement.bind:
            argv += [f"--cpus-per-task={placement.threads_per_rank}", "--cpu-bind=cores"]
        else:
            argv += ["--overcommit", "--cpu-bind=none"]
        if request.gpus_per_rank:
            argv.append("--gpu-bind=none")
        mpi = mpi_type(request.mpi)
        argv += [f"--mpi={mpi}"] if mpi else []
        argv += ["--kill-on-bad-exit=1", "--export=ALL", *request.arguments_for(self.name)]
        return Launch(
            (*argv, *request.program),
            environment=affinity.mvapich2(request, launcher_binds=True) | _leave_init_together(request, mpi),
            host_option="--nodelist",
        )


def mpi_type(library: Library) -> str | None:
    """The type of ``--mpi=``; None: it is not given, and the site's default holds."""
    return library.srun_mpi or _PMI.get(library.family, "pmi2")


def _leave_init_together(request: Request, mpi: str | None) -> dict[str, str]:
    if request.mpi.family != "openmpi" or not (mpi or "").startswith("pmix"):
        return {}
    return {name: value for name, value in _TOGETHER.items() if name not in request.environment}
