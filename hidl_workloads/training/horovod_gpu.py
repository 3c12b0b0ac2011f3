"""Path by which Horovod sums PyTorch's gradients on GPUs, and checks that it works."""

from __future__ import annotations

from typing import Literal

import torch
from mpi4py import MPI

from hidl_workloads.refusal import Refused
from hidl_workloads.torch_device import require_own_gpus
from hidl_workloads.training.data_parallel.gpu_path import prove
from hidl_workloads.training.data_parallel.torch_devices import accelerator_of


def require_path(communicator: MPI.Comm, device: torch.device) -> Literal["nccl", "gpu-aware"]:
    """Return what Horovod sums by, as it was built; ``device`` is this rank's; collective.

    Raises ``Refused`` on all ranks if it was built for processors, if it sums by NCCL and two ranks have one GPU, or by
    MPI and the library is not GPU-aware: it would read the GPUs' memory as the host's, and crash.
    """
    import horovod.torch as hvd

    if not hvd.cuda_built():
        raise Refused(
            "this Horovod was built for CPUs: use one for GPUs (hidl install horovod-pytorch), or --device cpu"
        )
    if hvd.nccl_built():
        require_own_gpus(communicator, device, otherwise="the stack horovod-pytorch-mpi")
        return "nccl"
    path = prove(communicator, accelerator_of(device), on_trust=False)
    if path.name == "staged":
        raise Refused(
            f"this Horovod passes GPU memory to MPI, which cannot sum it: {path.reason}; use a GPU-aware "
            "library (--mpi), or the stack horovod-pytorch, which sums with NCCL"
        )
    return "gpu-aware"
