"""What all programs of this package take; units and meanings are those of the recipes in recipes/workloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hidl_workloads.arguments import number

Protocol = Literal["tcp", "mpi"]
Device = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class Common:
    """Parameters of every program."""

    protocol: Protocol = "tcp"
    device: Device = "cpu"
    runs: int = number(3, least=1)
    warmup: int = number(1, least=0)
    ignore_size: str = "1MiB"
    worker_threads: int = number(0, least=0)
    interface: str = ""
