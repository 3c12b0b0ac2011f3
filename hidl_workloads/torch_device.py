"""The device that PyTorch computes on: in a run on GPUs the rank's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hidl_workloads import gpus
from hidl_workloads.refusal import agree

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI


def choose_device(communicator: MPI.Comm) -> torch.device:
    """Return the processor, or in a run on GPUs the first that this rank sees, which is its own; collective.

    Raises ``Refused`` on all ranks where one of them has no GPU that PyTorch can use.
    """
    import torch

    if not gpus.is_wanted():
        return torch.device("cpu")
    require_gpu(communicator)
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def require_gpu(communicator: MPI.Comm) -> None:
    """Raise ``Refused`` on all ranks if one of them has no GPU that PyTorch can use; collective."""
    import torch

    fault = gpus.untaken()
    if fault is None and not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = f"it was built for {built}, but its driver supports no GPU" if built else "it was built for CPUs only"
        fault = f"PyTorch {torch.__version__} has no usable GPU on this rank: {why}"
    agree(communicator, fault)


def require_own_gpus(communicator: MPI.Comm, device: torch.device, otherwise: str) -> None:
    """Raise ``Refused`` on all ranks if two of them compute on one GPU, which NCCL cannot sum over; collective.

    ``device``: this rank's. ``otherwise``: what sums over ranks that share a GPU, which the refusal names.
    """
    import torch
    from mpi4py import MPI

    own = (MPI.Get_processor_name(), str(torch.cuda.get_device_properties(device).uuid))
    everywhere = communicator.allgather(own)
    shared = [rank for rank, each in enumerate(everywhere) if everywhere.count(each) > 1]
    fault = f"NCCL requires a GPU for each rank, but ranks {shared} share one: use fewer ranks per node, or {otherwise}"
    agree(communicator, fault if shared else None)
