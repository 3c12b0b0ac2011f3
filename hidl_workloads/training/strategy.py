"""Which libraries average the gradients, by backend and framework, and what they support."""

from __future__ import annotations

from hidl_workloads.gpus import is_wanted
from hidl_workloads.parameters import Training

_TITLES = {
    ("mpi4py", "torch"): "hidl_workloads.training.data_parallel over MPI",
    ("mpi4py", "tensorflow"): "hidl_workloads.training.data_parallel over MPI",
    ("horovod", "torch"): "Horovod over MPI",
    ("horovod", "tensorflow"): "Horovod over MPI",
    ("gloo", "torch"): "PyTorch's DistributedDataParallel over gloo",
    ("gloo", "tensorflow"): "Horovod over gloo",
    ("nccl", "torch"): "PyTorch's DistributedDataParallel over NCCL",
}
_COMPRESSIONS = {"mpi4py": ("none", "float16", "bfloat16"), "horovod": ("none", "float16")}


def title(parameters: Training) -> str:
    """Return what averages the gradients, such as ``Horovod over MPI``."""
    return _TITLES[parameters.backend, parameters.framework]


def check(parameters: Training) -> None:
    """Raise ``ValueError`` for a backend that does not serve the framework or the device, or not the compression."""
    if (parameters.backend, parameters.framework) not in _TITLES:
        raise ValueError(f"backend {parameters.backend} does not support {parameters.framework}: use framework=torch")
    if parameters.backend == "nccl" and not is_wanted():
        raise ValueError("NCCL sums GPU memory only: use --device gpu, or backend=gloo")
    library = title(parameters)
    if is_wanted() and parameters.framework == "tensorflow" and parameters.backend != "mpi4py":
        raise ValueError(f"tensorflow with {library} computes on processors only: use --device cpu")
    offered = _COMPRESSIONS.get("horovod" if "Horovod" in library else parameters.backend, ("none",))
    if parameters.compression not in offered:
        raise ValueError(
            f"compression {parameters.compression} is not supported by {library}: use {', '.join(offered)}"
        )
