"""Which libraries average the gradients, by backend and framework, and what they support."""

from __future__ import annotations

from hidl_workloads.gpus import is_wanted
from hidl_workloads.parameters import Training

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
#: Backends of torch.distributed, which alone can shard weights.
_C10D = ("mpi", "gloo", "nccl")
_COMPRESSIONS = {"mpi4py": ("none", "float16", "bfloat16"), "horovod": ("none", "float16")}


def title(parameters: Training) -> str:
    """Return what averages the gradients, such as ``Horovod over MPI``."""
    found = _TITLES[parameters.backend, parameters.framework]
    return found.replace("DistributedDataParallel", "FSDP2") if parallel(parameters) != "ddp" else found


def parallel(parameters: Training) -> str:
    """Return how the ranks share the weights: ``ddp`` if the workload has no such parameter."""
    return str(getattr(parameters, "parallel", "ddp"))


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
    library = title(parameters)
    if is_wanted() and parameters.framework == "tensorflow" and parameters.backend != "mpi4py":
        raise ValueError(f"tensorflow with {library} computes on processors only: use --device cpu")
    offered = _COMPRESSIONS.get("horovod" if "Horovod" in library else parameters.backend, ("none",))
    if parameters.compression not in offered:
        raise ValueError(
            f"compression {parameters.compression} is not supported by {library}: use {', '.join(offered)}"
        )
