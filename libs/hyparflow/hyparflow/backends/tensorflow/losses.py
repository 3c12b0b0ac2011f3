"""What ``model.compile`` says about losses, output by output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hyparflow.errors import UnsupportedModel


@dataclass(frozen=True)
class OutputLoss:
    """One compiled loss: ``output`` is the position in ``Graph.outputs``, ``function`` a Keras loss."""

    output: int
    function: Any
    weight: Any


def compiled_losses(model: Any) -> tuple[OutputLoss, ...]:
    """The losses of a compiled model; none for a model that is not compiled or has no loss.

    Keras resolves them itself, on the symbolic outputs (for targets of the outputs' shapes).

    :raises UnsupportedModel: if one of them is of several outputs together.
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
    found = tuple(OutputLoss(_at(places, path), loss, weight) for path, loss, weight, _ in losses._flat_losses)
    for each in found:
        if not isinstance(each.output, int):
            names = ", ".join(compiled.output_names[place] for place in tree.flatten(each.output))
            raise UnsupportedModel(
                f"loss {each.function.name!r} is of the outputs {names} together, which may lie on different ranks: "
                "give each output a loss of its own in compile()"
            )
    return found


def couples_samples(loss: Any) -> bool:
    """Whether one of Keras' losses is of a batch as a whole: no sum over its samples."""
    import keras

    if isinstance(loss, keras.losses.Circle):
        return True
    if isinstance(loss, keras.losses.Dice | keras.losses.Tversky):
        axes = loss.axis
        return axes is None or 0 in (axes if isinstance(axes, list | tuple) else [axes])
    return False


def depends_on_batch(loss: Any) -> bool:
    """Whether another size of batches gives another mean over all samples, or may, as a user's own loss."""
    function = getattr(loss, "fn", type(loss))
    own = not getattr(function, "__module__", "").startswith("keras.")
    return own or couples_samples(loss) or loss.reduction not in ("sum_over_batch_size", "mean")


def _at(structure: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        structure = structure[key]
    return structure
