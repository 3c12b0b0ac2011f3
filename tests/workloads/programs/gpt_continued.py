"""Train GPT without a stop, and with one after the second step, then continue in a new trainer: ``OUT OPTIONS...``.

Each word of OPTIONS is one training, such as ``parallel=tp,partitions=2``. Written as JSON to OUT, by OPTIONS: the
checksums of the weights at the end of both.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hidl_workloads import arguments, stop
from hidl_workloads.checkpoint import Checkpoints
from hidl_workloads.gpt import GPT
from hidl_workloads.parameters import Gpt
from hidl_workloads.training import program
from hidl_workloads.training.data_parallel.weights import checksum

WORLD = MPI.COMM_WORLD
SMALL = ("batch=2", "context=16", "vocabulary=100", "layers=4", "width=32", "heads=4", "learning_rate=0.01")
LENGTH = ("steps=4", "warmup=1", "batches=5")
OUT = Path(sys.argv[1])


def train(options: str, directory: Path, *, stops: bool) -> str | None:
    """Train until the end or a stop; return the checksum of the weights, None after a stop."""
    words = [f"--{each}" for each in (*SMALL, *LENGTH, "backend=mpi", *options.split(","))]
    parameters = arguments.parse(Gpt, words)
    model = GPT(parameters)
    trainer: Any = program.make_trainer(WORLD, model, parameters)
    checkpoints: Checkpoints = program._checkpoints(WORLD, directory, "gpt", trainer, parameters)
    course = program.Course(WORLD, trainer, model, parameters, checkpoints)
    step = trainer.step

    def step_and_ask_for_a_stop() -> float:
        loss: float = step()
        if stops and course.step == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return loss

    trainer.step = step_and_ask_for_a_stop
    timing = course.train()
    assert (timing is None) == stops
    assert course.step == (2 if stops else 5)
    found = None if timing is None else checksum(trainer.weights())
    trainer.close()
    stop._state["requested"] = False  # the next job is a new process
    return found


def main() -> None:
    os.environ |= {"HIDL_CHECKPOINT_INTERVAL": "1000"}
    found = {}
    for number, options in enumerate(sys.argv[2:]):
        os.environ["HIDL_RUN_ID"] = options
        directories = [OUT.parent / f"{name}-{number}" for name in ("straight", "chain")]
        straight = train(options, directories[0], stops=False)
        train(options, directories[1], stops=True)
        found[options] = [straight, train(options, directories[1], stops=False)]
    if WORLD.rank == 0:
        OUT.write_text(json.dumps(found))


main()
