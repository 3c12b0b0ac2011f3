"""Train on 2 ranks with checkpoints, from the last one on: ``killed.py ROOT [VICTIM AFTER DELAY]``.

With three more words, rank VICTIM is killed (SIGKILL) DELAY seconds after AFTER more steps have begun. Without, the
training goes to its end, is done once more without a break, and the largest difference between both is printed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import hyparflow
import keras
import numpy as np
import small
from mpi4py import MPI

STEPS = 40


class Kill(keras.callbacks.Callback):
    """Ends this process as nobody can foresee: in the midst of computing, waiting or writing."""

    def __init__(self, after: int, delay: float) -> None:
        super().__init__()
        self._left = after
        self._delay = delay

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            threading.Timer(self._delay, os.kill, (os.getpid(), signal.SIGKILL)).start()


def train(root: Path, callbacks: list[Any], restart: bool) -> dict[str, Any]:
    strategy = hyparflow.Strategy(2, 1, micro_batches=2, costs="estimated", seed=5)
    with strategy.scope():
        model = small.build()
    small.compiled(model)
    x, y = small.data()
    epochs = STEPS // small.STEPS
    strategy.fit(
        model, x, y, batch_size=small.BATCH, epochs=epochs, verbose=0, callbacks=callbacks, checkpoint=root,
        checkpoint_every=3, restart=restart,
    )  # fmt: skip
    return {name: np.asarray(value).copy() for name, value in strategy._sessions.current.variables.items()}


def main() -> None:
    root, *kill = sys.argv[1:]
    callbacks = []
    if kill and MPI.COMM_WORLD.rank == int(kill[0]):
        callbacks = [Kill(int(kill[1]), float(kill[2]))]
    ended = train(Path(root) / "killed", callbacks, restart=True)
    if kill:
        return
    straight = train(Path(root) / "straight", [], restart=True)
    far = max(float(np.abs(np.subtract(ended[name], straight[name], dtype="float64")).max()) for name in straight)
    far = MPI.COMM_WORLD.allreduce(far, op=MPI.MAX)
    if MPI.COMM_WORLD.rank == 0:
        print(f"far {far}")


if __name__ == "__main__":
    main()
