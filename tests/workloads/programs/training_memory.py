"""Train for a few steps in several ways: ``OUT WAYS...``, such as ``gpt,parallel=tp,recompute=always``.

Written as JSON to OUT, by way: the metrics of memory, each by rank, and the message of a way that was refused.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hidl_workloads import arguments
from hidl_workloads.gpt import GPT
from hidl_workloads.image_training import Images
from hidl_workloads.parameters import Gpt, Resnet50
from hidl_workloads.refusal import Refused
from hidl_workloads.training import program

WORLD = MPI.COMM_WORLD
MODELS: dict[str, tuple[Any, Any]] = {"gpt": (Gpt, GPT), "resnet50": (Resnet50, Images)}


def memory(way: str) -> dict[str, Any]:
    name, *words = way.split(",")
    kind, make = MODELS[name]
    parameters = arguments.parse(kind, [f"--{each}" for each in words])
    try:
        trainer: Any = program.make_trainer(WORLD, make(parameters), parameters)
    except Refused as error:
        return {"refused": str(error)}
    for _ in range(3):
        trainer.step()
    wanted = ("peak_memory", "predicted_memory", "recompute")
    found = {each.name: each.samples for each in trainer.metrics() if each.name in wanted}
    trainer.close()
    return found


def main() -> None:
    found = {}
    for way in sys.argv[2:]:
        found[way] = memory(way)
        gc.collect()
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


main()
