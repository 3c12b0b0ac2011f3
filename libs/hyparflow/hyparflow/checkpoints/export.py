"""From checkpoints, and from models that lie in pieces on many ranks, to ordinary Keras."""

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
    """Give a Keras model, in one process, the weights of a checkpoint; a compiled one its optimizer's state too.

    ``path``: a checkpoint (``DIR/step-0000000012``), or the directory of them: then its last whole one is taken.
    Where each replica has moving statistics of its own (BatchNorm), they are replica 0's.

    :returns: how far the training had come: ``progress.step``, ``progress.epoch``.
    :raises CheckpointError: if there is no whole one, or it is another model's.
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
    """The checkpoint at ``path``, or the last whole one below it."""
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
    """Raise CheckpointError where the checkpoint is another model's."""
    if checkpoint.fingerprint != fingerprint:
        raise CheckpointError(f"{checkpoint.directory} is of another model: build the one that was trained")


def save_whole(
    model: keras.Model,
    values: Mapping[str, Array],
    path: str | Path,
    weights_only: bool,
    *,
    optimizer: bool = True,
    **options: Any,
) -> None:
    """Write ``.keras`` (or ``.weights.h5``) from the values of all variables: on one rank, which then has them all.

    ``optimizer``: whether there are values for the optimizer too.
    """
    with whole(model, values, optimizer):
        write(model, path, weights_only, **options)


def write(model: keras.Model, path: str | Path, weights_only: bool, **options: Any) -> None:
    """As Keras writes a file, and in one piece: ranks that write the same file at once do not spoil it."""
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
    """Let a model have the values of all variables, and in here an optimizer with the slots of all of them.

    ``optimizer``: False leaves the model the one that has a rank's own slots only.
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
