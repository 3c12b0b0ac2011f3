"""``mpiexec`` of Hydra, the launcher of MPICH and its derivatives."""

from __future__ import annotations

from hidl_cli.launch.launchers.contract import (
    DAEMONS_OF_SRUN,
    Launch,
    Launcher,
    Request,
    intel_binding,
    mvapich2_binding,
)
from hidl_cli.launchers import require_fit
from hidl_cli.mpi import MPICH_ON_ONE_HOST


class Mpiexec(Launcher):
    """Hydra's ``mpiexec`` from the MPI library itself.

    With the ``mpiexec`` of another library, each rank would run on its own, in an MPI world of size 1.
    """

    name = "mpiexec"
    #: Each of these libraries comes with its own Hydra.
    starts = ("mpich", "mvapich2", "mvapich2-gdr", "mvapich", "mvapich-plus", "intel-mpi")
    of_library = True
    through_ssh = True
    in_reframe = True

    def launch(self, request: Request) -> Launch:
        """Start the ranks with Hydra, which passes the environment on to all of them.

        Inside a job, Hydra starts its proxies through the scheduler (srun, blaunch) if it finds one, or else through
        ssh. A site can choose with a launcher argument (``-launcher ssh``; ``-bootstrap ssh`` for Intel MPI).
        """
        require_fit(self, request.mpi)
        placement = request.placement
        argv = [request.mpi.program(self.name), "-n", str(placement.ranks)]
        # Without these options, Hydra would use a scheduler whose variables happen to be set.
        hosts = ["-f", request.hostfile, "-ppn", str(placement.ranks_per_node)]
        argv += ["-launcher", "fork"] if request.on_one_host else hosts
        argv += ["-rmk", "user"] if request.on_one_host and request.mpi.family != "intel-mpi" else []
        if request.through_ssh:
            argv += ["-bootstrap" if request.mpi.family == "intel-mpi" else "-launcher", "ssh"]
        if request.mpi.family == "intel-mpi":
            # By default, Intel MPI ignores -ppn inside a job and uses the scheduler's number of ranks per node.
            environment = {"I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0", **intel_binding(request)}
        else:
            argv += ["-bind-to", f"core:{placement.threads_per_rank}" if placement.bind else "none"]
            argv += ["-map-by", "socket"] if placement.bind and placement.straddles_in_a_row else []
            environment = mvapich2_binding(request, launcher_binds=True)
        if request.on_one_host and request.mpi.family == "mpich":
            environment |= {name: value for name, value in MPICH_ON_ONE_HOST.items() if name not in request.environment}
        if not (request.on_one_host or request.through_ssh):
            environment |= DAEMONS_OF_SRUN
        return Launch(
            (*argv, *request.arguments_for(self.name), *request.program), environment=environment, host_option=""
        )
