"""Keras' callbacks with many ranks that train one model.

A callback runs on every rank, each with its own object. Its decisions depend on logs that are equal on all ranks, so
all ranks decide alike (in addition, ``stop_training`` is agreed on). Callbacks that write a log of the run (CSVLogger,
RemoteMonitor, TensorBoard, the progress bar) run on rank 0 only. ModelCheckpoint runs on all ranks and writes ordinary
Keras files: the ranks send their variables to rank 0, which writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyparflow.errors import RequestError

if TYPE_CHECKING:
    import keras

_ON_RANK_0 = ("CSVLogger", "ProgbarLogger", "RemoteMonitor", "TensorBoard")
_REFUSED = {
    "BackupAndRestore": "it saves whole models only; use fit(..., checkpoint=DIR, restart=True)",
    "OrbaxCheckpoint": "it saves whole models only; use fit(..., checkpoint=DIR)",
    "SwapEMAWeights": "it swaps the weights of whole models only",
}
#: State of Keras' callbacks between epochs, besides weights.
_REMEMBERED = ("best", "best_epoch", "cooldown_counter", "stopped_epoch", "wait")


class View:
    """The model as Keras' own callbacks see it on one rank.

    ``get_weights`` returns the values of this rank's own variables, and None for the others; ``set_weights`` accepts
    that list. Everything else is passed to the Keras model.
    """

    def __init__(self, model: keras.Model, own: Mapping[str, Any], save: Callable[..., None]) -> None:
        """Wrap a model.

        Args:
            model: The Keras model.
            own: The variables of this rank.
            save: A function ``save(path, weights_only, **options)``; collective.
        """
        vars(self).update(_model=model, _own={id(each) for each in own.values()}, _save=save)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)

    def save(self, filepath: Any, **options: Any) -> None:
        """Save the model like keras.Model.save; all ranks call it together."""
        self._save(filepath, weights_only=False, **options)

    def save_weights(self, filepath: Any, **options: Any) -> None:
        """Save the weights like keras.Model.save_weights; all ranks call it together."""
        self._save(filepath, weights_only=True, **options)

    def get_weights(self) -> list[Any]:
        """Return values in the order of the model's weights, None for variables of other ranks."""
        import numpy as np

        return [np.asarray(each).copy() if id(each) in self._own else None for each in self._model.weights]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the values returned by ``get_weights``."""
        for variable, value in zip(self._model.weights, weights, strict=True):
            if value is not None:
                variable.assign(value)


def show_model(callbacks: Sequence[Any], model: keras.Model) -> None:
    """Give a user's own callbacks the Keras model, whose methods all ranks call together."""
    for callback in callbacks:
        if _keras_name(callback) is None:
            callback.set_model(model)


def check(callbacks: Sequence[Any]) -> None:
    """Raise RequestError for a callback that requires the whole model on one rank."""
    for callback in callbacks:
        name = _keras_name(callback)
        if name in _REFUSED:
            raise RequestError(f"{name} cannot be used here: {_REFUSED[name]}")
        if name == "TensorBoard" and (callback.histogram_freq or callback.embeddings_freq):
            raise RequestError(
                "TensorBoard's histogram_freq and embeddings_freq need all weights on one rank: remove them"
            )
        if name == "ModelCheckpoint" and "{" in str(Path(callback.filepath).parent):
            raise RequestError(
                "ModelCheckpoint: {...} is not supported in the directory, only in the file name: "
                f"{callback.filepath}"
            )


def of_rank(callbacks: Sequence[Any], rank: int) -> list[Any]:
    """Return the callbacks that run on a rank; only those of rank 0 print."""
    if rank == 0:
        for callback in callbacks:
            if _keras_name(callback) == "ModelCheckpoint":
                Path(callback.filepath).parent.mkdir(parents=True, exist_ok=True)
        return list(callbacks)
    kept = [each for each in callbacks if _keras_name(each) not in _ON_RANK_0]
    for callback in kept:
        if _keras_name(callback) is not None and hasattr(callback, "verbose"):
            callback.verbose = 0
    return kept


def remembered(callbacks: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Return the state of callbacks for a restart, counters and best values, as JSON values."""
    return tuple(
        {
            "kind": type(callback).__name__,
            **{name: _plain(vars(callback)[name]) for name in _REMEMBERED if name in vars(callback)},
        }
        for callback in callbacks
        if _keras_name(callback) not in _ON_RANK_0
    )


def remind(callbacks: Sequence[Any], memories: Sequence[Mapping[str, Any]]) -> None:
    """Restore the state of callbacks if they are the same ones in the same order."""
    kept = [callback for callback in callbacks if _keras_name(callback) not in _ON_RANK_0]
    for callback, memory in zip(kept, memories, strict=False):
        if type(callback).__name__ == memory["kind"]:
            vars(callback).update({name: value for name, value in memory.items() if name != "kind"})


def _keras_name(callback: Any) -> str | None:
    """Return the name of the Keras class that a callback is derived from, None for a user's own."""
    for kind in type(callback).__mro__:
        if kind.__module__.startswith("keras.") and kind.__name__ not in ("Callback", "KerasCallback"):
            return kind.__name__
    return None


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int) else float(value)
