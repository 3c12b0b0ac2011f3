"""``ibrun``: TACC's wrapper around the launcher of whichever MPI library is loaded."""

from __future__ import annotations

from hidl_cli.launch.launchers import affinity
from hidl_cli.launch.launchers.contract import Launch, Launcher, Request
from hidl_cli.launchers import require_fit


class Ibrun(Launcher):
    """It takes hosts, and ranks per host, from the job alone, and passes the whole environment on."""

    name = "ibrun"
    #: The libraries that TACC's modules offer; it finds them by the variables that a module sets.
    starts = ("mvapich2", "mvapich2-gdr", "mvapich", "mvapich-plus", "intel-mpi", "openmpi")
    needs_site_library = True

    def launch(self, request: Request) -> Launch:
        """See ``Launcher.launch``.

        ``-n`` ranks from slot ``-o`` on: the job's slots are in the order of its nodes, so a step takes the first nodes
        of the job. The library binds its ranks, by its variables or mpirun's options, unless the site puts TACC's
        ``task_affinity`` before the program, as an argument of ibrun.
        """
        require_fit(self, request.mpi)
        further = request.arguments_for(self.name)
        binds = any("affinity" in word for word in further)
        pinned = affinity.mvapich2(request, launcher_binds=binds)
        if not binds:
            pinned |= affinity.intel(request) | affinity.open_mpi_under_ibrun(request)
        argv = (self.name, "-n", str(request.placement.ranks), "-o", "0", *further, *request.program)
        return Launch(argv, environment=pinned)
