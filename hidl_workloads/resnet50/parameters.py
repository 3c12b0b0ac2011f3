"""The command line: ``--name=value`` words, one for each parameter of the workload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

#: Who averages the gradients, in words, by backend and framework.
BACKENDS = {
    ("mpi4py", "torch"): "hidl_workloads.data_parallel over MPI",
    ("mpi4py", "tensorflow"): "hidl_workloads.data_parallel over MPI",
    ("horovod", "torch"): "Horovod over MPI",
    ("horovod", "tensorflow"): "Horovod over MPI",
    ("gloo", "torch"): "PyTorch's DistributedDataParallel over gloo",
    ("gloo", "tensorflow"): "Horovod over gloo",
}
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True)
class Parameters:
    """What a run of the workload may change; units and meanings are those of recipes/workloads/resnet50.yaml."""

    framework: Literal["torch", "tensorflow"] = "torch"
    backend: Literal["mpi4py", "horovod", "gloo"] = "mpi4py"
    batch: int = 8
    image_size: int = 224
    steps: int = 12
    warmup: int = 2
    precision: Literal["float32", "bfloat16"] = "float32"
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.01
    bucket_mib: float = 25.0
    cycle_time_ms: float = 1.0
    fusion_mib: float = 128.0
    timeline: bool = False
    seed: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a number that cannot be meant."""
        smallest = {
            "batch": 1,
            "image_size": 32,
            "steps": 1,
            "warmup": 0,
            "learning_rate": 0,
            "bucket_mib": 0.001,
            "cycle_time_ms": 0.001,
            "fusion_mib": 0,
            "seed": 0,
        }
        for name, limit in smallest.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= limit):
                raise ValueError(f"{name} must be {limit} or more, not {value}")


def parse(words: Sequence[str]) -> Parameters:
    """Read ``--name=value`` words; raises ``ValueError`` that says which word is wrong and what is valid.

    argparse is not used: it takes the value of ``--note=--`` away.
    """
    types = get_type_hints(Parameters)
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not equals or name not in types:
            valid = " ".join(f"--{field.name}={field.default}" for field in fields(Parameters))
            raise ValueError(f"no such argument: {word!r}; valid, with their defaults: {valid}")
        values[name] = _read(name, text, types[name])
    return Parameters(**values)


def _read(name: str, text: str, kind: Any) -> Any:
    choices = get_args(kind)
    if choices:
        if text not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, not {text!r}")
        return text
    if kind is bool:
        if text not in _TRUTH:
            raise ValueError(f"{name} must be true or false, not {text!r}")
        return _TRUTH[text]
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{name} must be {'an integer' if kind is int else 'a number'}, not {text!r}") from error
