"""``mpiexec`` of MPICH and its kin (Hydra)."""

from __future__ import annotations

from hidl_cli.launch.launchers import affinity
from hidl_cli.launch.launchers.contract import Launch, Request
from hidl_cli.launch.launchers.families import require_fit


class Mpiexec:
    """The Hydra ``mpiexec`` of the very library: with another MPI's, N singletons would start."""

    name = "mpiexec"

    def launch(self, request: Request) -> Launch:
        """See ``Launcher.launch``. Hydra passes the environment on to all ranks by itself.

        Inside a job it starts its proxies through the scheduler (srun, blaunch) where it finds one, else through ssh;
        a site chooses by an argument (``-launcher ssh``; ``-bootstrap ssh`` for Intel MPI).
        """
        require_fit(self.name, request.mpi)
        placement = request.placement
        argv = [request.mpi.program(self.name), "-n", str(placement.ranks)]
        # The fork launcher keeps Hydra from asking a scheduler whose variables happen to be set.
        hosts = ["-f", request.hostfile, "-ppn", str(placement.ranks_per_node)]
        argv += ["-launcher", "fork"] if request.on_one_host else hosts
        if request.mpi.family == "intel-mpi":
            # Inside a job it takes the scheduler's ranks per node, not those of -ppn, unless it is told not to.
            environment = {"I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0", **affinity.intel(request)}
        else:
            argv += ["-bind-to", f"core:{placement.threads_per_rank}" if placement.bind else "none"]
            environment = affinity.mvapich2(request, launcher_binds=True)
        return Launch(
            (*argv, *request.arguments_for(self.name), *request.program), environment=environment, host_option=""
        )
