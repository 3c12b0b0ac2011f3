"""Whether the MPI library of this process really sums GPU memory, which it says: a small sum, checked on all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from hidl_workloads import gpu_aware

if TYPE_CHECKING:
    import numpy as np
    import torch
    from mpi4py import MPI

_LAUNCHERS = ("PMI_", "PMI2_", "PMIX_", "PALS_", "OMPI_", "PRTE_", "SLURM_", "MPI_LOCAL", "MPIRUN_", "FLUX_", "HYD")
# Open MPI 4's singletons start a daemon for others to join, which ends them where there is no ssh, as in containers.
_ALONE = {"OMPI_MCA_ess_singleton_isolated": "1"}
_CHILD_SECONDS = 120.0
_SIZE = 1024


def begin_sum(communicator: MPI.Comm, values: Any) -> MPI.Request:
    """Begin to sum GPU memory, as mpi4py takes it, over all ranks, in place.

    Where the library's collectives take such memory only if they are blocking (``gpu_aware``), it is complete on
    return.
    """
    from mpi4py import MPI

    if gpu_aware.has_nonblocking_collectives():
        return communicator.Iallreduce(MPI.IN_PLACE, values, MPI.SUM)
    communicator.Allreduce(MPI.IN_PLACE, values, MPI.SUM)
    return MPI.REQUEST_NULL


@cache
def survives(device: int) -> str | None:
    """Sum memory of GPU ``device`` in a process of its own, which may crash; return why it failed, None if it did not.

    Once in the life of this process: it takes seconds, and each optimizer asks.

    The process is alone in its MPI world: no launcher starts one beside a rank. What it sums passes through MPI's own
    copies all the same, which end a library that is not GPU-aware.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)} | _ALONE
    command = [sys.executable, "-m", __name__, str(device)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a process that sums GPU memory alone: {error}"
    if done.returncode == 0:
        return None
    lines = (done.stderr + done.stdout).strip().splitlines()
    status = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
    return f"a process that sums GPU memory alone ended with {status}" + (f": {lines[-1]}" if lines else "")


def sums_are_right(
    communicator: MPI.Comm, make: Callable[[Any], torch.Tensor], export: Callable[[torch.Tensor], object]
) -> str | None:
    """Sum a small tensor of the device over all ranks; return what is wrong with it, on all ranks; collective.

    ``make`` returns a host's array on the device, when it is there; ``export`` what mpi4py takes for it.
    """
    import numpy as np

    own = np.arange(_SIZE, dtype=np.float32) + communicator.rank
    expected = np.arange(_SIZE, dtype=np.float32) * communicator.size + sum(range(communicator.size))
    values = make(own)
    try:
        begin_sum(communicator, export(values)).Wait()
        fault = _compare(values.cpu().numpy(), expected)
    except Exception as error:  # whatever MPI says, it is the answer
        fault = f"{type(error).__name__}: {error}"
    faults = [each for each in communicator.allgather(fault) if each is not None]
    return faults[0] if faults else None


def _compare(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> str | None:
    wrong = (found != expected).nonzero()[0]
    if not len(wrong):
        return None
    return f"the sum of GPU memory over the ranks is wrong: {found[wrong[0]]}, expected {expected[wrong[0]]}"


def _sum_alone(device: int) -> None:
    """What the process of ``survives`` does."""
    import numpy as np
    import torch
    from mpi4py import MPI

    from hidl_workloads.training.data_parallel.torch_devices import Cuda

    accelerator = Cuda(torch.device("cuda", device))
    sent = torch.arange(_SIZE, dtype=torch.float32, device=accelerator.device)
    received = torch.zeros_like(sent)
    torch.cuda.synchronize(device)
    MPI.COMM_WORLD.Allreduce(accelerator.export(sent), accelerator.export(received), MPI.SUM)
    begin_sum(MPI.COMM_WORLD, accelerator.export(received)).Wait()
    MPI.COMM_WORLD.Sendrecv(accelerator.export(received), 0, recvbuf=accelerator.export(sent), source=0)
    if fault := _compare(sent.cpu().numpy(), np.arange(_SIZE, dtype=np.float32)):
        sys.exit(fault)


if __name__ == "__main__":
    _sum_alone(int(sys.argv[1]))
