"""The state of a training with Keras, as checkpoints hold it.

Ranks share the trainable weights and the optimizer's variables. The others, such as the moving statistics of batch
normalisation and the states of random generators, are a rank's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy as np


def write_shared(network: Any, optimizer: Any, file: BinaryIO) -> None:
    """Write what is equal on all ranks."""
    write([*network.trainable_variables, *optimizer.variables], file)


def write_own(network: Any, file: BinaryIO) -> None:
    """Write what only this rank has."""
    write(network.non_trainable_variables, file)


def restore(network: Any, optimizer: Any, shared: Path, own: Path) -> None:
    """Load the state into a network and an optimizer that have just been built."""
    read([*network.trainable_variables, *optimizer.variables], shared)
    read(network.non_trainable_variables, own)


def write(variables: Sequence[Any], file: BinaryIO) -> None:
    """Write the values of variables, in this order."""
    arrays = (np.asarray(keras.ops.convert_to_numpy(each)) for each in variables)
    np.savez(file, **{f"{number:06d}": array for number, array in enumerate(arrays)})  # type: ignore[arg-type]


def read(variables: Sequence[Any], path: Path) -> None:
    """Set variables, in the order of ``write``."""
    with np.load(path, allow_pickle=False) as arrays:
        if len(arrays.files) != len(variables):
            raise ValueError(f"{path} has {len(arrays.files)} arrays for {len(variables)} variables")
        for number, variable in enumerate(variables):
            variable.assign(arrays[f"{number:06d}"])
