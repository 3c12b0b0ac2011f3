"""``mpirun`` of Open MPI 4 and 5, and of its derivatives."""

from __future__ import annotations

from hidl_cli.launch.launchers.contract import (
    DAEMONS_OF_SRUN,
    Launch,
    Launcher,
    Request,
    open_mpi_needs_rankfile,
    open_mpi_options,
    open_mpi_rankfile,
)
from hidl_cli.launchers import require_fit

#: Variables that make mpirun ignore a scheduler whose variables happen to be set. These names work for Open MPI 4 and
#: 5.
_NO_SCHEDULER = {
    "OMPI_MCA_ras": "^slurm,lsf,tm,gridengine",
    "OMPI_MCA_plm": "rsh",
    "PRTE_MCA_ras": "^slurm,lsf,pbs,gridengine",
    "PRTE_MCA_plm": "ssh",
}

#: In a job submitted with --export=NONE, srun would drop the variables that the daemons need to find their library.
_DAEMONS = {"SLURM_EXPORT_ENV": "ALL", **DAEMONS_OF_SRUN}


class Mpirun(Launcher):
    """The ``mpirun`` of the MPI library itself.

    With the ``mpirun`` of another library, each rank would run on its own, in an MPI world of size 1.
    """

    name = "mpirun"
    #: The families that use Open MPI's own runtime (ORTE or PRRTE).
    starts = ("openmpi", "spectrum-mpi")
    of_library = True
    through_ssh = True
    in_reframe = True

    def launch(self, request: Request) -> Launch:
        """Start the ranks with ``mpirun`` and pass variables with ``-x NAME``.

        mpirun warns about a named variable that is not set, so variables that only exist at run time are added by the
        job script. If the script runs as root, it also sets ``OMPI_ALLOW_RUN_AS_ROOT`` and
        ``OMPI_ALLOW_RUN_AS_ROOT_CONFIRM``, without which mpirun refuses to start.
        """
        require_fit(self, request.mpi)
        placement = request.placement
        needs_rankfile = open_mpi_needs_rankfile(placement)
        mpirun = request.mpi.program(self.name)
        argv = [*open_mpi_rankfile(request, mpirun)] if needs_rankfile else [mpirun]
        argv += ["-np", str(placement.ranks)]
        if request.on_one_host and not needs_rankfile:
            argv += ["--host", f"localhost:{placement.ranks_per_node}"]
        else:
            argv += ["--hostfile", request.hostfile]
        argv += [] if needs_rankfile else open_mpi_options(request)
        argv += request.arguments_for(self.name)
        for name in request.environment:
            argv += ["-x", name]
        forwarded = tuple(name for name in request.forward if name not in request.environment)
        return Launch(
            argv=(*argv, *(() if forwarded else request.program)),
            forwarded=forwarded,
            rest=request.program if forwarded else (),
            environment=_NO_SCHEDULER if request.on_one_host or request.through_ssh else _DAEMONS,
            host_line=f"{{host}} slots={placement.ranks_per_node}",
            forward_option="-x",
            host_option="",
        )
