"""The parameters of the program, as its command line gives them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """``batch``: images per rank and step; ``image_size`` in pixels; ``steps`` are timed, ``warmup`` are not."""

    framework: Literal["torch", "tensorflow"] = "torch"
    batch: int = 8
    image_size: int = 224
    steps: int = 12
    warmup: int = 2
    precision: Literal["float32", "bfloat16"] = "float32"
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.01
    bucket_mib: float = 25.0
    seed: int = 0
    note: str = ""

    @property
    def bucket_bytes(self) -> int:
        """The limit of a bucket, in bytes."""
        return int(self.bucket_mib * 2**20)


def parse(arguments: list[str] | None = None) -> Settings:
    """Read ``--name=value`` arguments (None: the command line's)."""
    parser = argparse.ArgumentParser(prog="python -m hidl_workloads.resnet50", allow_abbrev=False)
    parser.add_argument("--framework", choices=("torch", "tensorflow"))
    parser.add_argument("--precision", choices=("float32", "bfloat16"))
    parser.add_argument("--optimizer", choices=("sgd", "adam"))
    for name in ("batch", "image_size", "steps", "warmup", "seed"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("learning_rate", "bucket_mib"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--note")
    given = vars(parser.parse_args(arguments))
    return Settings(**{name: value for name, value in given.items() if value is not None})
