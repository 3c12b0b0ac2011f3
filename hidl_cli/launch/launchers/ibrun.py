"""``ibrun``: TACC's wrapper around the launcher of whichever MPI library is loaded."""

from __future__ import annotations

from hidl_cli.launch.launchers import affinity
from hidl_cli.launch.launchers.contract import Launch, Request
from hidl_cli.launch.launchers.families import require_fit


class Ibrun:
    """It takes hosts, and ranks per host, from the job alone, and passes the whole environment on."""

    name = "ibrun"

    def launch(self, request: Request) -> Launch:
        """See ``Launcher.launch``.

        ``-n`` ranks from slot ``-o`` on: the job's slots are in the order of its nodes, so a step takes the first nodes
        of the job. Binding is the library's own, by its variables, unless the site puts TACC's ``task_affinity``
        before the program, as an argument of ibrun.
        """
        require_fit(self.name, request.mpi)
        further = request.arguments_for(self.name)
        binds = any("affinity" in word for word in further)
        pinned = affinity.mvapich2(request, launcher_binds=binds) | ({} if binds else affinity.intel(request))
        argv = (self.name, "-n", str(request.placement.ranks), "-o", "0", *further, *request.program)
        return Launch(argv, environment=pinned)
