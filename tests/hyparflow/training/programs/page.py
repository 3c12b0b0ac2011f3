"""A program of a page, CODE, on these ranks and in one process with plain Keras: ``page.py DIRECTORY CODE [PART]``.

PART is a part of a page that continues the program. Writes ``page.json``: the largest difference of weights and of what
``fit`` reports, how far the training moved the weights, and the files that are left.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import hyparflow
import keras
import numpy as np
from mpi4py import MPI

keras.config.set_floatx("float64")
COMM = MPI.COMM_WORLD
SAMPLES = 1024


class Plain:
    """A strategy that leaves everything to Keras."""

    comm = COMM
    plan = None

    def __init__(self, **layout: int) -> None:
        assert layout["partitions"] * layout.get("replicas", 1) == COMM.size

    def scope(self) -> Any:
        return nullcontext()

    def fit(self, model: Any, *samples: Any, **options: Any) -> None:
        own = {"checkpoint", "restart", "tensorboard", "trace"}
        model.fit(*samples, **{name: value for name, value in options.items() if name not in own})


def build_model() -> Any:
    layers = [keras.layers.Dense(12, "relu"), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3, "softmax")]
    return keras.Sequential([keras.Input((32,)), *layers])


def plain_keras() -> ModuleType:
    """Return what stands for hyparflow in one process."""
    module: Any = ModuleType("hyparflow")
    module.Strategy, module.set_strategy, module.gather = Plain, lambda strategy: None, lambda model: None
    return module  # type: ignore[no-any-return]


def trained(code: str) -> list[Any]:
    """Return what a run of the code leaves, and the weights that it began with."""
    random = np.random.default_rng(5)
    x = random.normal(size=(SAMPLES, 32))
    y = random.integers(3, size=(SAMPLES, 1)).astype(float)
    names: dict[str, Any] = {"__name__": "__main__", "build_model": build_model, "rank": COMM.rank, "x": x, "y": y}
    keras.backend.clear_session()
    keras.utils.set_random_seed(11)
    exec(compile(code, "page.py", "exec"), names)
    model, saved = names["model"], keras.models.load_model(sorted(Path().glob("*.keras"))[-1])
    history = model.history.history
    return [*map(np.array, saved.get_weights()), *(np.array(history[name]) for name in sorted(history))]


def main(root: Path, *parts: str) -> None:
    code = "\n".join(parts)
    # hyparflow permutes samples by a generator of its own, as the page says.
    assert code.count("validation_split=0.1") == 1
    code = code.replace("validation_split=0.1", "validation_split=0.1, shuffle=False")
    os.chdir(root)
    ranks = trained(code)
    COMM.barrier()
    hyparflow.set_strategy(None)
    if COMM.rank:
        return
    left = sorted(str(each) for each in Path().iterdir())
    sys.modules["hyparflow"] = plain_keras()
    alone = trained(code)
    found = {
        "difference": max(float(np.abs(a - b).max()) for a, b in zip(ranks, alone, strict=True)),
        "learned": float(alone[-1].max() - alone[-1].min()),
        "left": left,
    }
    Path("page.json").write_text(json.dumps(found))


main(Path(sys.argv[1]), *(Path(each).read_text() for each in sys.argv[2:]))
