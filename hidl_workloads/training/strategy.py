"""The libraries that average gradients, by backend and framework, and what they support."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from hidl_workloads.gpus import is_wanted
from hidl_workloads.parameters import Training

if TYPE_CHECKING:
    from mpi4py import MPI

AnyTraining = TypeVar("AnyTraining", bound=Training)

_TITLES = {
    ("mpi4py", "torch"): "hidl_workloads.training.data_parallel over MPI",
    ("mpi4py", "tensorflow"): "hidl_workloads.training.data_parallel over MPI",
    ("horovod", "torch"): "Horovod over MPI",
    ("horovod", "tensorflow"): "Horovod over MPI",
    ("mpi", "torch"): "PyTorch's DistributedDataParallel over MPI",
    ("gloo", "torch"): "PyTorch's DistributedDataParallel over gloo",
    ("gloo", "tensorflow"): "Horovod over gloo",
    ("nccl", "torch"): "PyTorch's DistributedDataParallel over NCCL",
}
_PARALLEL = {
    "ddp": "DistributedDataParallel",
    "fsdp": "FSDP2",
    "hsdp": "FSDP2 in replicas",
    "tp": "tensor parallelism",
    "pp": "pipelines",
}
#: Backends of torch.distributed, which alone can divide weights among ranks.
_C10D = ("mpi", "gloo", "nccl")
_COMPRESSIONS = {"mpi4py": ("none", "float16", "bfloat16"), "horovod": ("none", "float16")}


def title(parameters: Training) -> str:
    """Return what averages the gradients, such as ``Horovod over MPI``."""
    found = _TITLES[parameters.backend, parameters.framework]
    return found.replace("DistributedDataParallel", _PARALLEL[parallel(parameters)])


def task(parameters: Training) -> str:
    """Return what ``title`` does, such as ``Gradients: averaged``."""
    return "Weights: divided" if parallel(parameters) in ("tp", "pp") else "Gradients: averaged"


def parallel(parameters: Training) -> str:
    """Return how the ranks share the weights: ``ddp`` if the workload has no such parameter."""
    return str(getattr(parameters, "parallel", "ddp"))


def divide_batch(parameters: AnyTraining, ranks: int) -> AnyTraining:
    """Return the parameters with each rank's share of ``total_batch`` as its batch.

    Raises:
        ValueError: if the shares would differ.
    """
    total = int(getattr(parameters, "total_batch", 0))
    if total % ranks:
        raise ValueError(f"total_batch={total} must be a multiple of the number of ranks, {ranks}")
    return replace(parameters, batch=total // ranks) if total else parameters


def micro_batches(parameters: Training) -> int:
    """Return the parts of a rank's batch: 1 if the workload has no such parameter."""
    return int(getattr(parameters, "micro_batches", 0)) or 1


def partitions(parameters: Training, communicator: MPI.Comm) -> int:
    """Return the number of ranks that have one copy of the weights together; collective.

    Raises ``Refused`` on all ranks if it does not divide them.
    """
    size = int(communicator.size)
    if parallel(parameters) in ("ddp", "fsdp"):
        return size
    found = int(getattr(parameters, "partitions", 0)) or (
        size if parallel(parameters) == "pp" else _per_node(communicator)
    )
    if size % found:
        from hidl_workloads.refusal import Refused  # imports MPI

        raise Refused(f"partitions={found} must divide the number of ranks, {size}")
    return found


def _per_node(communicator: MPI.Comm) -> int:
    from mpi4py import MPI

    node = communicator.Split_type(MPI.COMM_TYPE_SHARED)
    found = set(communicator.allgather(node.size))
    node.Free()
    if len(found) > 1:
        from hidl_workloads.refusal import Refused

        raise Refused(f"nodes have different numbers of ranks, {min(found)} to {max(found)}: set partitions")
    return int(found.pop())


def check(parameters: Training) -> None:
    """Raise ``ValueError`` for a backend that does not serve the framework or the device, or not the compression."""
    if (parameters.backend, parameters.framework) not in _TITLES:
        raise ValueError(f"backend {parameters.backend} does not support {parameters.framework}: use framework=torch")
    if parameters.backend == "nccl" and not is_wanted():
        raise ValueError("NCCL sums GPU memory only: use --device gpu, or backend=gloo")
    if parameters.backend == "mpi" and is_wanted():
        raise ValueError("backend mpi sums on processors only: use --device cpu, or backend=mpi4py")
    if parallel(parameters) != "ddp" and parameters.backend not in _C10D:
        raise ValueError(
            f"parallel={parallel(parameters)} requires backend={', '.join(_C10D)}, not {parameters.backend}"
        )
    batch, parts = parameters.batch, micro_batches(parameters)
    if batch % parts and parallel(parameters) != "pp":
        raise ValueError(f"micro_batches={parts} must divide the batch of a rank, {batch}")
    library = title(parameters)
    if is_wanted() and parameters.framework == "tensorflow" and parameters.backend != "mpi4py":
        raise ValueError(f"tensorflow with {library} computes on processors only: use --device cpu")
    offered = _COMPRESSIONS.get("horovod" if "Horovod" in library else parameters.backend, ("none",))
    if parameters.compression not in offered:
        raise ValueError(
            f"compression {parameters.compression} is not supported by {library}: use {', '.join(offered)}"
        )
