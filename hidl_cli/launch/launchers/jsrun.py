"""``jsrun``, IBM's Job Step Manager for LSF on Summit, Lassen and Sierra."""

from __future__ import annotations

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.launchers.contract import Gpus, Launch, Launcher, Request, mvapich2_binding
from hidl_cli.launchers import require_fit

_PRELOAD = "OMPI_LD_PRELOAD_PREPEND"


class Jsrun(Launcher):
    """``jsrun``, which places resource sets on the job's hosts and passes the whole environment on."""

    name = "jsrun"
    #: jsrun supports PMIx; MVAPICH2 needs a PMI library on top of it (pmi4pmix).
    starts = ("spectrum-mpi", "mvapich2", "mvapich2-gdr")

    def launch(self, request: Request) -> Launch:
        """Start the ranks in resource sets.

        Without GPUs, each rank has its own resource set. With GPUs, the ranks of a host share one, so that each rank
        sees all GPUs (which direct transfers between GPUs require) and selects one by its local rank. A resource set
        cannot be partly filled: if the last host is not full, each rank has its own set even with GPUs.
        """
        require_fit(self, request.mpi)
        placement, gpus = request.placement, request.gpus or Gpus(0, 0)
        if request.shares_gpus and not request.fills_nodes:
            raise InvalidInput(
                f"jsrun cannot share {gpus.per_node} GPUs of a node among {placement.ranks} ranks on "
                f"{placement.nodes} nodes: the number of ranks differs between nodes",
                hint="use a multiple of the number of nodes, or at most as many ranks per node as a node has GPUs",
            )
        together = placement.ranks_per_node if gpus.per_node and request.fills_nodes else 1
        argv = [self.name, "-n", str(placement.ranks // together), "-r", str(placement.ranks_per_node // together)]
        argv += ["-a", str(together), "-c", str(together * placement.threads_per_rank)]
        argv += ["-g", str(min(together * gpus.per_rank, gpus.per_node)), "-d", "packed"]
        argv += ["-b", f"packed:{placement.threads_per_rank}" if placement.bind else "none"]
        return Launch(
            (*argv, *request.arguments_for(self.name), *request.program),
            environment=mvapich2_binding(request, launcher_binds=True),
            preloaded_by=_preloaded_by(request),
        )


def _preloaded_by(request: Request) -> str | None:
    """Return the variable that replaces Spectrum MPI, which jsrun preloads into every rank, with MVAPICH2.

    See the MVAPICH2-GDR user guide, 7.4. MVAPICH2 also needs the PMI library pmi4pmix on ``LD_LIBRARY_PATH``; the
    site's modules or the ``environment`` of its MPI library set that.
    """
    if request.mpi.family not in ("mvapich2", "mvapich2-gdr"):
        return None
    if _PRELOAD in request.environment or _PRELOAD in request.mpi.environment:
        return None
    if request.mpi.prefix is None:
        raise InvalidInput(
            f"jsrun preloads Spectrum MPI unless {_PRELOAD} is set to the libmpi.so of {request.mpi.name}, "
            "whose prefix is unknown",
            hint=f"set `prefix` of the site's MPI library {request.mpi.name}, or {_PRELOAD} in its `environment`",
        )
    return _PRELOAD
