"""Whether the MPI library of this process reads and writes GPU memory: asked of it, and then proved."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_workloads import mpi_library

if TYPE_CHECKING:
    import numpy as np
    import torch
    from mpi4py import MPI

_QUERIES = {"cuda": ("MPIX_Query_cuda_support",), "rocm": ("MPIX_Query_rocm_support", "MPIX_Query_hip_support")}
_GPU_QUERY = "MPIX_GPU_query_support"
_GPU_TYPES = {"cuda": 0, "rocm": 2}  # MPICH's MPIX_GPU_SUPPORT_CUDA and _HIP
_VARIABLES = (
    ("MVAPICH2", ("MV2_USE_CUDA", "MV2_USE_ROCM")),  # MVAPICH2-GDR
    ("MVAPICH", ("MVP_USE_CUDA", "MVP_USE_ROCM", "MPIR_CVAR_ENABLE_GPU")),  # MVAPICH-Plus, MVAPICH 4
)
_LAUNCHERS = ("PMI_", "PMI2_", "PMIX_", "PALS_", "OMPI_", "PRTE_", "SLURM_", "MPI_LOCAL", "MPIRUN_", "FLUX_", "HYD")
_CHILD_SECONDS = 120.0
_SIZE = 1024


@dataclass(frozen=True)
class Answer:
    """Whether the library says that it is GPU-aware (None: unknown), and where that is from."""

    aware: bool | None
    source: str


def ask(
    vendor: str = "cuda",
    *,
    libraries: Iterable[Path] | None = None,
    version: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Answer:
    """Ask the loaded MPI library, after ``MPI_Init``; ``vendor``: ``cuda`` or ``rocm``.

    A library without the functions for it is unknown, but for MVAPICH, whose variables tell.
    """
    version = mpi_library.version() if version is None else version
    for path in (mpi_library.mapped() or ()) if libraries is None else libraries:
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue
        answers = _answers(library, vendor)
        if answers:
            said = ", ".join(f"{name}: {int(answer)}" for name, answer in answers.items())
            return Answer(any(answers.values()), f"{path.name} answers {said}")
    for family, names in _VARIABLES:
        if version.startswith(family):
            on = [name for name in names if environment.get(name) == "1"]
            if on:
                return Answer(True, f"{version} with {on[0]}=1")
            return Answer(False, f"{version} without {' or '.join(f'{name}=1' for name in names)}")
    return Answer(None, f"{version} does not tell")


def _answers(library: ctypes.CDLL, vendor: str) -> dict[str, bool]:
    answers = {}
    for name in _QUERIES[vendor]:
        if (query := getattr(library, name, None)) is not None:
            answers[name] = bool(query())
    if (query := getattr(library, _GPU_QUERY, None)) is not None:
        supported = ctypes.c_int(0)
        if query(ctypes.c_int(_GPU_TYPES[vendor]), ctypes.byref(supported)) == 0:
            answers[_GPU_QUERY] = bool(supported.value)
    return answers


def survives(device: int) -> str | None:
    """Sum memory of GPU ``device`` in a process of its own, which may crash; return why it failed, None if it did not.

    The process is alone in its MPI world: no launcher starts one beside a rank. What it sums passes through MPI's own
    copies all the same, which end a library that is not GPU-aware.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
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
    from mpi4py import MPI

    own = np.arange(_SIZE, dtype=np.float32) + communicator.rank
    expected = np.arange(_SIZE, dtype=np.float32) * communicator.size + sum(range(communicator.size))
    values = make(own)
    try:
        communicator.Iallreduce(MPI.IN_PLACE, export(values), MPI.SUM).Wait()
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
    MPI.COMM_WORLD.Iallreduce(accelerator.export(sent), accelerator.export(received), MPI.SUM).Wait()
    MPI.COMM_WORLD.Sendrecv(accelerator.export(received), 0, recvbuf=accelerator.export(sent), source=0)
    if fault := _compare(sent.cpu().numpy(), np.arange(_SIZE, dtype=np.float32)):
        sys.exit(fault)


if __name__ == "__main__":
    _sum_alone(int(sys.argv[1]))
