"""Conversion of checkpoints and distributed models to plain Keras."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyparflow.checkpoints import directory
from hyparflow.checkpoints.directory import Checkpoint, Progress
from hyparflow.checkpoints.restore import last_whole, of_optimizer, restore
from hyparflow.checkpoints.shards import Array
from hyparflow.errors import CheckpointError

if TYPE_CHECKING:
    import keras


def load_into(model: keras.Model, path: str | Path) -> Progress:
    """Load a checkpoint into a Keras model in one process: weights and, if compiled, the state of its optimizer.

    If each replica has its own moving statistics (BatchNorm), those of replica 0 are used.

    Args:
        model: The model that was trained.
        path: A checkpoint (``DIR/step-0000000012``), or the directory of checkpoints, of which the last complete one is
            used.

    Returns:
        The progress of the training: ``progress.step``, ``progress.epoch``.

    Raises:
        CheckpointError: There is no complete checkpoint, or it belongs to another model.
    """
    from hyparflow.graph.calls import graph_of, variables_of
    from hyparflow.graph.initialise import initialise, is_here

    checkpoint = open_whole(Path(path))
    check_model(checkpoint, graph_of(model).fingerprint)
    variables = variables_of(model)
    initialise(each for each in variables.values() if is_here(each))
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        variables |= of_optimizer(optimizer)
    restore(checkpoint, variables, replica=0)
    return checkpoint.progress


def open_whole(path: Path) -> Checkpoint:
    """Open the checkpoint at ``path``, or the last complete one below it."""
    if (path / directory.MANIFEST).exists():
        checkpoint = directory.load(path)
        if problems := checkpoint.damage():
            raise CheckpointError(problems[0])
        return checkpoint
    found = last_whole(path)
    if found is None:
        raise CheckpointError(f"no complete checkpoint in {path}")
    return found


def check_model(checkpoint: Checkpoint, fingerprint: str) -> None:
    """Raise CheckpointError if the checkpoint belongs to another model."""
    if checkpoint.fingerprint != fingerprint:
        raise CheckpointError(f"{checkpoint.directory} belongs to another model: build the model that was trained")


def save_whole(
    model: keras.Model,
    values: Mapping[str, Array],
    path: str | Path,
    weights_only: bool,
    *,
    optimizer: bool = True,
    **options: Any,
) -> None:
    """Write a ``.keras`` or ``.weights.h5`` file from the values of all variables, on one rank.

    Args:
        model: The Keras model, which gets all values while it is written.
        values: Name -> value.
        path: The file.
        weights_only: Write weights only.
        optimizer: There are values for the optimizer too (default: True).
        options: Further options of Keras' method.
    """
    with whole(model, values, optimizer):
        write(model, path, weights_only, **options)


def write(model: keras.Model, path: str | Path, weights_only: bool, **options: Any) -> None:
    """Write a file as Keras does, but atomically, so that several ranks can write the same file at once."""
    save: Any = model.save_weights if weights_only else model.save
    path = Path(path)
    if options.get("overwrite") is False or options.get("max_shard_size") or options.get("zipped") is False:
        save(path, **options)
        return
    beside = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        save(beside, **options)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def whole(model: keras.Model, values: Mapping[str, Array], optimizer: bool = True) -> Iterator[None]:
    """Set all variables of a model, and give it an optimizer with all slots inside the context.

    Args:
        model: The Keras model.
        values: Name -> value.
        optimizer: False leaves the optimizer with this rank's own slots (default: True).
    """
    from hyparflow.graph.calls import variables_of

    _assign(variables_of(model), values)
    own = model.optimizer
    if optimizer:
        every = type(own).from_config(own.get_config())
        every.build(model.trainable_variables)
        _assign(of_optimizer(every), values)
        model.optimizer = every
    try:
        yield
    finally:
        model.optimizer = own


def _assign(variables: Mapping[str, Any], values: Mapping[str, Array]) -> None:
    for name, variable in variables.items():
        variable.assign(values[name])
