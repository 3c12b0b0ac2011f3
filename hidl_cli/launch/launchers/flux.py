"""``flux run``, a job step of the Flux instance that runs the job (flux-run(1), flux-shell-options(7))."""

from __future__ import annotations

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.launchers.contract import Launch, Launcher, Request
from hidl_cli.launchers import require_fit


class FluxRun(Launcher):
    """``flux run``, which needs no host file and passes the whole environment on."""

    name = "flux"
    #: MPI families supported through PMI-1, except for Open MPI 5, which uses PMIx (flux-pmix), and Spectrum MPI, which
    #: uses the job shell's plugin.
    starts = (
        "mpich",
        "mvapich2",
        "mvapich2-gdr",
        "mvapich",
        "mvapich-plus",
        "cray-mpich",
        "openmpi",
        "spectrum-mpi",
    )

    def launch(self, request: Request) -> Launch:
        """Start the ranks with ``flux run``.

        Flux assigns cores and GPUs to each task, but by default does not prevent the tasks of a node from using all of
        them. The affinity ``per-task`` restricts each rank to its own cores and GPUs.
        """
        require_fit(self, request.mpi)
        argv = ["flux", "run", *_resources(request), "-o", "exit-on-error"]
        for option in request.mpi.traits.flux_options:
            argv += ["-o", option]
        return Launch(
            (*argv, *request.arguments_for(self.name), *request.program),
            host_option="--requires=host:",
            input_option="--input=0",
        )


def _resources(request: Request) -> list[str]:
    """Return options for cores and GPUs per rank, or for whole nodes if ranks must share their cores or GPUs."""
    placement, gpus = request.placement, request.gpus
    nodes = ["-N", str(placement.nodes)]
    if placement.bind and not request.shares_gpus:
        argv = [*nodes, "-n", str(placement.ranks), "-c", str(placement.threads_per_rank)]
        argv += ["-g", str(gpus.per_rank)] if gpus else []
        return [*argv, "-o", "cpu-affinity=per-task", *(["-o", "gpu-affinity=per-task"] if gpus else [])]
    if not request.fills_nodes:
        what = "GPUs" if placement.bind else "cores"
        raise InvalidInput(
            f"flux run cannot share {what} among {placement.ranks} ranks on {placement.nodes} nodes: "
            f"the number of ranks differs between nodes",
            hint="use a multiple of the number of nodes, or fewer ranks per node (or --threads) so that each has its "
            f"own {what}",
        )
    affinity = "per-task" if placement.bind else "off"
    return [*nodes, "--exclusive", f"--tasks-per-node={placement.ranks_per_node}", "-o", f"cpu-affinity={affinity}"]
