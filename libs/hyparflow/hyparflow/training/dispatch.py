"""Dispatch of a model's own calls (``model.fit``, ``evaluate``, ``save``, ...) to a strategy.

The strategy is that of the innermost ``scope()`` or of ``set_strategy``, else the one that the model was built under or
trained by. Keras' methods are wrapped once per process. Without a strategy, the wrappers call Keras' own methods.
"""

from __future__ import annotations

import atexit
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, wraps
from typing import Any, Protocol

#: Methods of Keras' trainer with the same name in ``Strategy``.
_RUNS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
#: Methods that read or write the whole model.
_READS = ("save", "export", "save_weights", "load_weights", "get_weights", "quantize")
#: Methods that work without ``compile()``. Before it, no strategy has trained the model, and Keras runs them.
_UNCOMPILED = ("predict", "predict_on_batch")
_STRATEGY, SESSION = "_hyparflow_strategy", "_hyparflow_session"
_scopes: list[CallTarget] = []
_kept = ExitStack()  # the context that set_strategy has entered


class CallTarget(Protocol):
    """The part of ``hyparflow.Strategy`` that calls of a model are dispatched to; it also has Keras' methods."""

    def scope(self) -> AbstractContextManager[None]:
        """Return the context in which the strategy is in force."""


atexit.register(_kept.close)


def set_strategy(strategy: CallTarget | None) -> None:
    """Apply a strategy from here on, like a ``strategy.scope()`` around the rest of the program.

    ::

        hyparflow.set_strategy(hyparflow.Strategy(partitions=2))
        model = build()  # any Keras program: on 2 ranks, each with a part of the model
        model.compile("adam", "mse")
        model.fit(x, y)

    Every rank runs the same program. None removes the current strategy.
    """
    _kept.close()
    if strategy is not None:
        _kept.enter_context(strategy.scope())


@contextmanager
def scope(strategy: CallTarget) -> Iterator[None]:
    """Apply the strategy to every model used in this context, and later to the models that are built in it."""
    _wrap()
    _scopes.append(strategy)
    try:
        yield
    finally:
        _scopes.remove(strategy)


def strategy_of(model: Any) -> CallTarget | None:
    """Return the strategy that applies to a model."""
    own: CallTarget | None = vars(model).get(_STRATEGY)
    inner = _scopes[-1] if _scopes else None
    return inner or own


def hold(model: Any, strategy: CallTarget, session: object) -> None:
    """Run a model's own calls under this strategy; the session lives as long as the model."""
    _wrap()
    vars(model)[_STRATEGY] = strategy
    vars(model)[SESSION] = session


@contextmanager
def plain_keras(model: Any) -> Iterator[None]:
    """Let the model's calls run in plain Keras inside this context."""
    known = {name: vars(model).pop(name, None) for name in (_STRATEGY, SESSION)}
    inner = _scopes[:]
    _scopes.clear()
    try:
        yield
    finally:
        _scopes[:] = inner
        vars(model).update({name: value for name, value in known.items() if value is not None})


@cache
def _wrap() -> None:
    """Wrap Keras' methods."""
    import keras

    def trainer(name: str) -> Any:
        return next(each for each in keras.Model.__mro__ if name in vars(each))

    for name in (*_RUNS, *_READS):
        home = keras.Model if name in _READS else trainer(name)
        setattr(home, name, _routed(name, getattr(home, name)))
    keras.Model.__new__ = staticmethod(_marking(keras.Model.__new__))


def _marking(make: Callable[..., Any]) -> Any:
    """Return ``Model.__new__`` with a record of the strategy in whose scope it is called."""

    @wraps(make)
    def new(kind: Any, *arguments: Any, **options: Any) -> Any:
        made = make(kind, *arguments, **options)
        if _scopes:
            vars(made)[_STRATEGY] = _scopes[-1]
        return made

    return new


def _routed(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of Keras that is dispatched to a strategy if one applies."""
    signature = inspect.signature(own)

    @wraps(own)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        strategy = strategy_of(self)
        if strategy is None or (name in _UNCOMPILED and not self.compiled):
            return own(self, *arguments, **options)
        try:
            given = signature.bind(self, *arguments, **options).arguments
            if unknown := given.pop("kwargs", None) if name in _RUNS else None:
                raise TypeError(f"got an unexpected keyword argument {next(iter(unknown))!r}")
        except TypeError as error:
            raise TypeError(f"Model.{name}() {error}") from None
        del given["self"]
        given |= given.pop("kwargs", {})
        return getattr(strategy, name)(self, **given)

    return call
