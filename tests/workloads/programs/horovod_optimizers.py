"""One rank of ``horovodrun``: training with copies of a distributed optimizer; an overflow under mixed_float16.

    horovodrun -np 2 python horovod_optimizers.py DIRECTORY

Each rank writes DIRECTORY/RANK.json: for each training the weights' hash, and what a file of a model holds.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import horovod.keras as hvd
import keras
import numpy as np


def model(policy: str = "float32") -> Any:
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(1, dtype="float32")])


def trained(made: Any, optimizer: Any, overflow_at: int | None = None) -> str:
    """The weights' hash after an epoch on this rank's own images; in ``overflow_at`` an image is infinite."""
    images = np.random.default_rng(hvd.rank()).standard_normal((64, 4), np.float32)
    labels = images.sum(1, keepdims=True)
    if overflow_at is not None:
        images[overflow_at] = np.inf
    made.compile(optimizer, "mse")
    made.fit(images, labels, batch_size=8, shuffle=False, verbose=0)
    return hashlib.sha256(b"".join(weight.tobytes() for weight in made.get_weights())).hexdigest()


def main(directory: Path) -> None:
    hvd.init()
    own = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))
    copies = {
        "itself": own,
        "from_config of its class": own.__class__.from_config(own.get_config()),
        "deserialized": keras.optimizers.deserialize(keras.optimizers.serialize(own)),
        "distributed twice": hvd.DistributedOptimizer(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))
        ),
    }
    found = {name: trained(model(), optimizer) for name, optimizer in copies.items()}
    scaled = model("mixed_float16")
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))
    found["overflow on rank 1"] = trained(scaled, inner, overflow_at=20 if hvd.rank() == 1 else None)
    found["steps left out"] = str(8 - int(inner.iterations))
    file = directory / f"{hvd.rank()}.keras"
    scaled.save(file)
    found["in a file"] = type(keras.models.load_model(file).optimizer.inner_optimizer).__module__
    (directory / f"{hvd.rank()}.json").write_text(json.dumps(found))


main(Path(sys.argv[1]))
