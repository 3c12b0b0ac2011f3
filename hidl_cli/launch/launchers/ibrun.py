"""``ibrun``, TACC's wrapper around the launcher of the loaded MPI library."""

from __future__ import annotations

from hidl_cli.launch.launchers.contract import (
    Launch,
    Launcher,
    Request,
    intel_binding,
    mvapich2_binding,
    open_mpi_under_ibrun,
)
from hidl_cli.launchers import require_fit


class Ibrun(Launcher):
    """``ibrun``, which takes the hosts and ranks per host from the job and passes the whole environment on."""

    name = "ibrun"
    #: The MPI libraries in TACC's modules. ibrun recognizes each library by the variables that its module sets.
    starts = ("mvapich2", "mvapich2-gdr", "mvapich", "mvapich-plus", "intel-mpi", "openmpi")
    needs_site_library = True
    needs_tasks = True

    def launch(self, request: Request) -> Launch:
        """Start ``-n`` ranks from slot ``-o`` of the job.

        A job's slots follow the order of its nodes, so a step uses the first nodes of the job. The MPI library binds
        the ranks through its variables or mpirun's options, unless the site's launcher arguments run the program
        through TACC's ``task_affinity``.
        """
        require_fit(self, request.mpi)
        further = request.arguments_for(self.name)
        binds = any("affinity" in word for word in further)
        pinned = mvapich2_binding(request, launcher_binds=binds)
        if not binds:
            pinned |= intel_binding(request) | open_mpi_under_ibrun(request)
        argv = (self.name, "-n", str(request.placement.ranks), "-o", "0", *further, *request.program)
        return Launch(argv, environment=pinned)
