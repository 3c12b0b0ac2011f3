"""The libraries that average gradients, by backend and framework, and what they support."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from hidl_workloads.gpus import is_wanted
from hidl_workloads.own_program import MOST_RANKS
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
#: Backends of torch.distributed, the only ones that can divide weights among ranks.
_C10D = ("mpi", "gloo", "nccl")
#: Maximum number of micro-batches for each stage of a pipeline; stages are then idle for at most a fifth of the time.
_PER_STAGE = 4
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


def partitions(parameters: Training, communicator: MPI.Comm) -> int:
    """Return the number of ranks that have one copy of the weights together; collective.

    Raises ``Refused`` on all ranks if it does not divide them, or if they cannot divide the network.
    """
    from hidl_workloads.refusal import Refused  # imports MPI

    size, how = int(communicator.size), parallel(parameters)
    if how in ("ddp", "fsdp"):
        return size
    found = int(getattr(parameters, "partitions", 0)) or (size if how == "pp" else _per_node(communicator))
    if size % found:
        raise Refused(f"partitions={found} must divide the number of ranks, {size}")
    if how == "tp" and getattr(parameters, "heads", 0) % found:
        raise Refused(f"parallel=tp on {found} ranks requires a number of heads that is divisible by {found}")
    if how == "pp" and getattr(parameters, "layers", 0) < found:
        raise Refused(f"parallel=pp on {found} ranks requires at least one layer for each")
    return found


def parts(parameters: Training, partitions: int) -> int:
    """Return the number of micro-batches of what a rank, or a pipeline of ``partitions`` ranks, trains on in a step.

    In a job on fewer nodes than others of its run, the share of a rank is larger. It is divided into so many parts that
    none is larger than in a job on the largest number of nodes, and the step needs no more memory.

    Raises ``Refused`` if the batch of a pipeline cannot be divided; ``check`` does so for a rank's.
    """
    asked, batch = int(getattr(parameters, "micro_batches", 0)), parameters.batch
    if parallel(parameters) != "pp":
        total, most = int(getattr(parameters, "total_batch", 0)), int(os.environ.get(MOST_RANKS, "0"))
        if not total or not most:
            return asked or 1
        largest = max(1, total // most // (asked or 1))
        return next(each for each in range(-(-batch // largest), batch + 1) if batch % each == 0)
    fits = max(each for each in range(1, _PER_STAGE + 1) if batch % each == 0)
    found = asked or fits * partitions
    from hidl_workloads.refusal import Refused

    if batch * partitions % found:
        raise Refused(f"micro_batches={found} must divide the batch of all stages, {batch * partitions}")
    if found < partitions:
        raise Refused(f"micro_batches={found} must be at least the number of stages, {partitions}")
    return found


def _per_node(communicator: MPI.Comm) -> int:
    from mpi4py import MPI

    # MPI may not see that ranks of a node share its memory (MPIR_CVAR_NOLOCAL=1).
    found = set(Counter(communicator.allgather(MPI.Get_processor_name())).values())
    if len(found) > 1:
        from hidl_workloads.refusal import Refused

        raise Refused(f"nodes have different numbers of ranks, {min(found)} to {max(found)}: set partitions")
    return int(found.pop())


def smaller(parameters: Training) -> str:
    """Return what reduces the memory of a step."""
    ways, recompute = ["a smaller batch"], getattr(parameters, "recompute", None)
    if recompute == "never":
        ways.insert(0, "recompute=always")
    if recompute is not None:  # a workload that can divide its weights
        ways += ["more micro_batches"] * (parameters.batch > parts(parameters, 1))
        ways += ["parallel=fsdp" if parallel(parameters) == "ddp" else "more ranks"]
    return f"choose {', '.join(ways[:-1])}{' or ' if ways[1:] else ''}{ways[-1]}"


def check(parameters: Training) -> None:
    """Raise ``ValueError`` for a backend that does not serve the framework or the device, or not the compression."""
    if (parameters.backend, parameters.framework) not in _TITLES:
        raise ValueError(f"backend {parameters.backend} does not support {parameters.framework}: use framework=torch")
    if parameters.backend == "nccl" and not is_wanted():
        raise ValueError("NCCL only sums GPU memory: use --device gpu, or backend=gloo")
    if parameters.backend == "mpi" and is_wanted():
        raise ValueError("backend mpi only sums host memory: use --device cpu, or backend=mpi4py")
    if parallel(parameters) != "ddp" and parameters.backend not in _C10D:
        raise ValueError(
            f"parallel={parallel(parameters)} requires backend={', '.join(_C10D)}, not {parameters.backend}"
        )
    if parallel(parameters) != "pp" and parameters.batch % (each := parts(parameters, 1)):
        raise ValueError(f"micro_batches={each} must divide the batch of a rank, {parameters.batch}")
    if parameters.memory_limit and parameters.framework != "torch":
        raise ValueError("memory_limit requires framework=torch, for which memory can be predicted")
    if parameters.data and parameters.batches:
        raise ValueError("batches, of synthetic data, and data cannot be combined")
    library = title(parameters)
    if is_wanted() and parameters.framework == "tensorflow" and parameters.backend != "mpi4py":
        raise ValueError(f"tensorflow with {library} only computes on CPUs: use --device cpu")
    offered = _COMPRESSIONS.get("horovod" if "Horovod" in library else parameters.backend, ("none",))
    if parameters.compression not in offered:
        raise ValueError(
            f"compression {parameters.compression} is not supported by {library}: use {', '.join(offered)}"
        )
