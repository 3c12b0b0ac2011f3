"""The command line: ``--name=value`` words, one for each parameter of the workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hidl_workloads import arguments
from hidl_workloads.arguments import number


@dataclass(frozen=True)
class Parameters:
    """What a run of the workload may change; units and meanings are those of recipes/workloads/resnet50.yaml."""

    framework: Literal["torch", "tensorflow"] = "torch"
    batch: int = number(8, least=1)
    image_size: int = number(224, least=32)
    steps: int = number(12, least=1)
    warmup: int = number(2, least=0)
    precision: Literal["float32", "bfloat16"] = "float32"
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = number(0.01, least=0)
    bucket_mib: float = number(25.0, least=0.001)
    seed: int = number(0, least=0)
    note: str = ""


def parse(words: Sequence[str]) -> Parameters:
    """Read ``--name=value`` words; raises ``ValueError`` that says which word is wrong and what is valid."""
    return arguments.parse(Parameters, words)
