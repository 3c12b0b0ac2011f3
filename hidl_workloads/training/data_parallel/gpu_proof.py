"""Proof that the MPI library of this process sums GPU memory: a small sum, checked on all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray

from hidl_workloads import gpu_aware

_LAUNCHERS = ("PMI_", "PMI2_", "PMIX_", "PALS_", "OMPI_", "PRTE_", "SLURM_", "MPI_LOCAL", "MPIRUN_", "FLUX_", "HYD")
# By default, Open MPI 4's singletons start a daemon that others can join, and fail without ssh, as in containers.
_ALONE = {"OMPI_MCA_ess_singleton_isolated": "1"}
_CHILD_SECONDS = 120.0
_SIZE = 1024


class Memory(Protocol):
    """A GPU's memory as a framework's tensors hold it."""

    def on_device(self, array: NDArray[Any]) -> Any:
        """Return a copy of ``array`` as a tensor on the device, when it is there."""

    def on_host(self, values: Any) -> NDArray[Any]:
        """Return a copy of a tensor's values, when they are computed."""

    def export(self, values: Any) -> object:
        """Return what mpi4py takes for the memory of ``values``, a contiguous tensor."""


def begin_sum(communicator: MPI.Comm, values: Any, addends: Any = None) -> MPI.Request:
    """Begin to sum GPU memory, as mpi4py takes it, over all ranks: ``values`` in place, or ``addends`` into them.

    Where the library's collectives take such memory only if they are blocking (``gpu_aware``), it is complete on
    return.
    """
    from mpi4py import MPI

    sent = MPI.IN_PLACE if addends is None else addends
    if gpu_aware.has_nonblocking_collectives():
        return communicator.Iallreduce(sent, values, MPI.SUM)
    communicator.Allreduce(sent, values, MPI.SUM)
    return MPI.REQUEST_NULL


@cache
def survives(framework: str, device: int) -> str | None:
    """Sum memory of GPU ``device`` in a process of its own, which may crash; return why it failed, None if it did not.

    ``framework`` (``torch``, ``tensorflow``) holds the memory. Once in the life of this process: it takes seconds, and
    each optimizer asks.

    The process is alone in its MPI world: no launcher starts one beside a rank. What it sums passes through MPI's own
    copies all the same, which end a library that is not GPU-aware.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)} | _ALONE
    command = [sys.executable, "-m", __name__, framework, str(device)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a test process that sums GPU memory failed: {error}"
    if done.returncode == 0:
        return None
    lines = (done.stderr + done.stdout).strip().splitlines()
    status = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
    return f"a test process that sums GPU memory ended with {status}" + (f": {lines[-1]}" if lines else "")


def sums_are_right(communicator: MPI.Comm, memory: Memory) -> str | None:
    """Sum a few numbers of the device over all ranks; return what is wrong with them, on all ranks; collective."""
    import numpy as np

    own = np.arange(_SIZE, dtype=np.float32) + communicator.rank
    expected = np.arange(_SIZE, dtype=np.float32) * communicator.size + sum(range(communicator.size))
    values = memory.on_device(own)
    try:
        begin_sum(communicator, memory.export(values)).Wait()
        fault = _compare(memory.on_host(values), expected)
    except Exception as error:  # any error from MPI is the result
        fault = f"{type(error).__name__}: {error}"
    faults = [each for each in communicator.allgather(fault) if each is not None]
    return faults[0] if faults else None


def _compare(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> str | None:
    wrong = (found != expected).nonzero()[0]
    if not len(wrong):
        return None
    return f"the sum of GPU memory over the ranks is wrong: {found[wrong[0]]}, expected {expected[wrong[0]]}"


def sum_alone(communicator: MPI.Comm, memory: Memory) -> str | None:
    """Sum in the process of ``survives``, on a communicator of one rank; return what is wrong with the sums."""
    import numpy as np
    from mpi4py import MPI

    expected = np.arange(_SIZE, dtype=np.float32)
    sent, received = memory.on_device(expected), memory.on_device(np.zeros_like(expected))
    communicator.Allreduce(memory.export(sent), memory.export(received), MPI.SUM)
    begin_sum(communicator, memory.export(received)).Wait()
    communicator.Sendrecv(memory.export(received), 0, recvbuf=memory.export(sent), source=0)
    return _compare(memory.on_host(sent), expected)


def _main(framework: str, device: int) -> None:
    from mpi4py import MPI

    devices = import_module(f"hidl_workloads.training.data_parallel.{framework}_devices")
    sys.exit(sum_alone(MPI.COMM_WORLD, devices.gpu(device)))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
