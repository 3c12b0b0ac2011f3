"""Validation of requests before any rank starts to train."""

from __future__ import annotations

import warnings
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyparflow.checkpoints import directory
from hyparflow.errors import CheckpointError, DataError, RequestError

if TYPE_CHECKING:
    import keras

    from hyparflow.planning.plan import Plan


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints to make: directory, steps between two (None: at the end of each epoch), number to keep."""

    root: Path
    every: int | None
    keep: int | None
    restart: bool

    def make_ready(self, last: int) -> None:
        """Create the directory, and remove obstacles for checkpoints after step ``last`` (-1: from the start).

        Raises:
            CheckpointError: The training would overwrite the checkpoints of another.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        if not self.restart and directory.whole(self.root):
            raise CheckpointError(
                f"{self.root} contains checkpoints already: continue from them with restart=True, or use another "
                "directory"
            )
        directory.clear(self.root, last)


def checkpoints(root: str | Path | None, every: Any, keep: int | None, restart: bool) -> Checkpoints | None:
    """Return the checkpoints that ``fit`` is to make, or None.

    Args:
        root: The directory, or None.
        every: Steps between two checkpoints, or "epoch".
        keep: Number of checkpoints to keep; None: all.
        restart: Continue from the last checkpoint.

    Raises:
        RequestError: A number is out of range.
    """
    if root is None:
        if restart:
            raise RequestError("restart=True requires checkpoint=DIRECTORY, the directory of the checkpoints")
        return None
    if every != "epoch" and not (isinstance(every, int) and every >= 1):
        raise RequestError(f"checkpoint_every must be a number of steps, or 'epoch', not {every!r}")
    if keep is not None and keep < 1:
        raise RequestError(f"keep must be at least 1, not {keep}")
    return Checkpoints(Path(root), None if every == "epoch" else every, keep, restart)


def check_model(model: keras.Model, x: Any = None) -> None:
    """Raise UnsupportedModel for a model without a graph, RequestError for one that is not compiled.

    A Sequential without an input is built for the data, as Keras does.
    """
    import keras

    from hyparflow.graph.calls import graph_of

    if isinstance(model, keras.Sequential) and not model.built:
        element = x[0] if isinstance(x, keras.utils.PyDataset) else getattr(x, "element_spec", x)  # of a Dataset
        shape = getattr(element[0] if isinstance(element, tuple) else element, "shape", None)
        if shape is not None:
            model.build((None, *shape[1:]))
    graph_of(model)
    if not model.compiled or model.optimizer is None:
        raise RequestError(f"model {model.name!r} is not compiled: call model.compile(optimizer, loss) first")


def check_losses(model: keras.Model, plan: Plan) -> None:
    """Raise RequestError for a loss of the batch as a whole if a step computes the batch in several parts."""
    from hyparflow.backends.tensorflow.losses import compiled_losses, couples_samples

    parts = plan.replicas * plan.micro_batches
    coupled = [loss.function for loss in compiled_losses(model) if couples_samples(loss.function)] if parts > 1 else []
    if coupled:
        raise RequestError(
            f"loss {coupled[0].name!r} depends on the batch as a whole, but a step computes the batch in {parts} parts "
            f"({plan.replicas} replicas x {plan.micro_batches} micro-batches): use replicas=1 with micro_batches=1, or "
            "an axis without 0 if the loss has one"
        )


def check_training(model: keras.Model, plan: Plan) -> None:
    """Raise RequestError for variables that a step overwrites if it computes the batch in several parts."""
    parts = plan.replicas * plan.micro_batches
    anew = [each for each in model.trainable_variables if each.overwrite_with_gradient] if parts > 1 else []
    if anew:
        raise RequestError(
            f"{anew[0].path!r} is set anew by each part of a batch (the scales of float8 are), but a step computes the "
            f"batch in {parts} parts ({plan.replicas} replicas x {plan.micro_batches} micro-batches): train with "
            "replicas=1 and micro_batches=1; evaluate and predict in any number"
        )


def check_batch(plan: Plan, batch_size: int) -> None:
    """Raise DataError if the batches of the data do not match the plan."""
    if plan.batch_size != batch_size:
        raise DataError(
            f"the plan is for batches of {plan.batch_size} samples, but those of the data have {batch_size}"
        )


def capped_epochs(epochs: int) -> int:
    """Limit epochs to ``keras.config.set_max_epochs``."""
    import keras

    most = keras.config.max_epochs()
    if not most or epochs <= most:
        return epochs
    warnings.warn(f"Limiting epochs to {most}", stacklevel=3)
    return most


def capped_steps(steps: int | None, batches: int | None) -> int | None:
    """Limit the steps of an epoch of ``batches`` batches to ``keras.config.set_max_steps_per_epoch``."""
    import keras

    most = keras.config.max_steps_per_epoch()
    if not most or (steps or batches or most + 1) <= most:
        return steps
    warnings.warn(f"Limiting steps_per_epoch to {most}", stacklevel=3)
    return most


def validates(epoch: int, frequency: int | Container[int]) -> bool:
    """Return whether an epoch (from 0) ends with a validation: every ``frequency``-th one, or those listed (from 1)."""
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return epoch + 1 in frequency
