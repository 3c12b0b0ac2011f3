"""Where the value of each variable of a model is: on this rank, not made yet, or on other ranks only.

A variable with memory has its value *here*. One built in ``deferred`` *waits*: its value is known (from its
initializer, or from what was assigned to it), and gets memory when a stage or plain Keras needs it. After ``release``
it is *elsewhere*: other ranks train it, and to read it here is an error until ``hyparflow.gather`` or an assignment.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

from hyparflow.errors import RequestError


@contextmanager
def deferred() -> Iterator[None]:
    """Build a model in this context, and no weight of its layers takes memory until ``initialise``.

    The values are those that the model would have had at once, from the same ``keras.utils.set_random_seed``: Keras'
    initializers draw their seeds when the layer is made. What is assigned to them (``load_weights``, ``set_weights``,
    ``adapt``) stays. Everything else works as usual in here: ``compile()``, optimizers, ``load_model()``.
    """
    from keras import StatelessScope
    from keras.layers import Layer
    from keras.src.backend.common import global_state

    at_once = Layer.add_weight

    @wraps(at_once)
    def add_weight(self: Any, *arguments: Any, **options: Any) -> Any:
        listed = global_state.get_global_attribute("uninitialized_variables") or []
        # Keras lists what waits, and would initialise it as soon as any other scope ends.
        global_state.set_global_attribute("uninitialized_variables", [])
        try:
            with StatelessScope(initialize_variables=False):
                variable = at_once(self, *arguments, **options)
        finally:
            global_state.set_global_attribute("uninitialized_variables", listed)
        _track(variable)
        return variable

    Layer.add_weight = add_weight
    try:
        yield
    finally:
        Layer.add_weight = at_once


def initialise(variables: Iterable[Any]) -> None:
    """Give those Keras variables that wait for their value memory and this value.

    :raises RequestError: for one that other ranks have.
    """
    for variable in variables:
        if variable._value is None:
            _require_value(variable)
            # TensorFlow records gradients only of what was trainable when it was made; a frozen layer may be unfrozen.
            trainable, variable._trainable = variable._trainable, variable.made_trainable
            variable._deferred_initialize()
            variable._trainable = trainable


def release(variables: Iterable[Any]) -> None:
    """Drop the values of variables that other ranks train, and give their memory back."""
    had_memory = False
    for variable in variables:
        _track(variable)
        had_memory |= variable._value is not None or isinstance(variable._initializer, _Known)
        variable._value = variable._initializer = None
    if had_memory:
        give_memory_back()


def give_memory_back() -> None:
    """Let the system have what is free: glibc keeps large blocks, which would add up to a whole model on every rank."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def is_here(variable: Any) -> bool:
    """Whether this rank has the variable's value, or can make it."""
    return variable._value is not None or variable._initializer is not None


class _Known:
    """An initializer with one value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return self._value


def _require_value(variable: Any) -> None:
    if not is_here(variable):
        raise RequestError(
            f"{variable.path} is on other ranks, which train it: call hyparflow.gather(model) on all ranks first, then "
            "every rank has the whole model; or call model.evaluate, predict, get_weights or save on all ranks"
        )


def _track(variable: Any) -> None:
    """Let a variable know that its value may be missing, and whether it was made to train."""
    kind: Any = type(variable)
    if not hasattr(kind, "may_be_elsewhere"):
        variable.__class__ = _tracking(kind)
        variable.made_trainable = variable.trainable if variable._value is None else variable._value.trainable


@cache
def _tracking(kind: Any) -> Any:
    """A Keras backend's class of variables, with values that may wait or be elsewhere."""
    from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    class Variable(kind):
        may_be_elsewhere = True

        @property
        def value(self) -> Any:
            """The value; a variable that waits for it gets memory, except in a stateless scope."""
            if self._value is None:
                given = in_stateless_scope() and get_stateless_scope().get_current_value(self) is not None
                if not given and in_symbolic_scope() and not is_here(self):
                    import keras

                    return keras.ops.zeros(self._shape, dtype=self._dtype)  # only its shape matters here
                if not given:
                    _require_value(self)
                    if not in_stateless_scope():
                        initialise([self])
            return kind.value.fget(self)

        def _direct_assign(self, value: Any) -> None:
            if self._value is None:
                self._initializer = _Known(value)
            else:
                super()._direct_assign(value)

    Variable.__qualname__ = Variable.__name__ = kind.__name__
    return Variable
