"""What ``model.compile`` says about losses, output by output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OutputLoss:
    """One compiled loss: ``output`` is the position in ``Graph.outputs``, ``function`` a Keras loss."""

    output: int
    function: Any
    weight: Any


def compiled_losses(model: Any) -> tuple[OutputLoss, ...]:
    """The losses of a compiled model; none for a model that is not compiled or has no loss.

    Keras resolves them itself, on the symbolic outputs (for targets of the outputs' shapes).
    """
    from keras import tree
    from keras.src.trainers.compile_utils import CompileLoss

    compiled = getattr(model, "_compile_loss", None)
    if compiled is None:
        return ()
    outputs = model.outputs
    structure = getattr(model, "_functional", model)._outputs_struct
    if isinstance(structure, (list, tuple)) and len(structure) == 1:
        structure = structure[0]
    losses = CompileLoss(compiled._user_loss, compiled._user_loss_weights, output_names=compiled.output_names)
    losses.build(structure, structure)
    places: Any = tree.pack_sequence_as(structure, list(range(len(outputs))))
    if isinstance(losses._y_pred_build_structure, dict) and not isinstance(structure, dict):
        places = dict(zip(compiled.output_names, range(len(outputs)), strict=True))
    return tuple(OutputLoss(_at(places, path), loss, weight) for path, loss, weight, _ in losses._flat_losses)


def _at(structure: Any, path: tuple[Any, ...]) -> int:
    for key in path:
        structure = structure[key]
    position: int = structure
    return position
