"""The command line: ``--name=value`` words, one for each parameter of the workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hidl_workloads import arguments
from hidl_workloads.arguments import number

#: Who averages the gradients, in words, by backend and framework.
BACKENDS = {
    ("mpi4py", "torch"): "hidl_workloads.data_parallel over MPI",
    ("mpi4py", "tensorflow"): "hidl_workloads.data_parallel over MPI",
    ("horovod", "torch"): "Horovod over MPI",
    ("horovod", "tensorflow"): "Horovod over MPI",
    ("gloo", "torch"): "PyTorch's DistributedDataParallel over gloo",
    ("gloo", "tensorflow"): "Horovod over gloo",
}


@dataclass(frozen=True)
class Parameters:
    """What a run of the workload may change; units and meanings are those of recipes/workloads/resnet50.yaml."""

    framework: Literal["torch", "tensorflow"] = "torch"
    backend: Literal["mpi4py", "horovod", "gloo"] = "mpi4py"
    batch: int = number(8, least=1)
    image_size: int = number(224, least=32)
    steps: int = number(12, least=1)
    warmup: int = number(2, least=0)
    precision: Literal["float32", "bfloat16"] = "float32"
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = number(0.01, least=0)
    bucket_mib: float = number(25.0, least=0.001)
    cycle_time_ms: float = number(1.0, least=0.001)
    fusion_mib: float = number(128.0, least=0)
    timeline: bool = False
    compression: Literal["none", "float16", "bfloat16"] = "none"
    seed: int = number(0, least=0)
    note: str = ""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for what the backend does not do: nothing that was asked for is left out silently."""
        who = BACKENDS[self.backend, self.framework]
        offered = {"mpi4py": ("none", "float16", "bfloat16"), "horovod": ("none", "float16")}.get(
            "horovod" if "Horovod" in who else self.backend, ("none",)
        )
        if self.compression not in offered:
            raise ValueError(f"compression {self.compression} is not offered by {who}, only {', '.join(offered)}")


def parse(words: Sequence[str]) -> Parameters:
    """Read ``--name=value`` words; raises ``ValueError`` that says which word is wrong and what is valid."""
    return arguments.parse(Parameters, words)
