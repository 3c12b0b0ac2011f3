"""The location of each variable's value: on this rank, not created yet, or on other ranks only.

A variable with memory has its value *here*. A variable built in ``deferred`` *waits*: its value is known (from its
initializer, or from an assignment) and gets memory when a stage or plain Keras needs it. After ``release``, it is
*elsewhere*: other ranks train it, and reading it here is an error until ``hyparflow.gather`` or an assignment.
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
    """Defer the memory of the weights of models that are built in this context until ``initialise``.

    The values are the same as without the context, from the same ``keras.utils.set_random_seed``, because Keras'
    initializers draw their seeds when the layer is created. Assigned values (``load_weights``, ``set_weights``,
    ``adapt``) are kept. Everything else works as usual: ``compile()``, optimizers, ``load_model()``.
    """
    from keras import StatelessScope
    from keras.layers import Layer
    from keras.src.backend.common import global_state

    at_once = Layer.add_weight

    @wraps(at_once)
    def add_weight(self: Any, *arguments: Any, **options: Any) -> Any:
        listed = global_state.get_global_attribute("uninitialized_variables") or []
        # Keras lists uninitialised variables, and would initialise them at the end of any other scope.
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
    """Allocate deferred Keras variables and set their values.

    Raises:
        RequestError: The value of a variable is on other ranks.
    """
    for variable in variables:
        if variable._value is None:
            _require_value(variable)
            # TensorFlow records gradients only of variables that were created as trainable, and a frozen layer may be
            # unfrozen.
            trainable, variable._trainable = variable._trainable, variable.made_trainable
            variable._deferred_initialize()
            variable._trainable = trainable


def release(variables: Iterable[Any]) -> None:
    """Drop the values of variables that other ranks train, and free their memory."""
    had_memory = False
    for variable in variables:
        _track(variable)
        had_memory |= variable._value is not None or isinstance(variable._initializer, _Known)
        variable._value = variable._initializer = None
    if had_memory:
        give_memory_back()


def give_memory_back() -> None:
    """Return free memory to the system. glibc keeps large blocks, which would add up to a whole model on every rank."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def is_here(variable: Any) -> bool:
    """Return whether this rank has the variable's value, or can create it."""
    return variable._value is not None or variable._initializer is not None


class _Known:
    """An initializer with a given value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return self._value


def _require_value(variable: Any) -> None:
    if not is_here(variable):
        raise RequestError(
            f"{variable.path} is on other ranks, which train it: call hyparflow.gather(model) on all ranks first, so "
            "that every rank has the whole model, or call model.evaluate, predict, get_weights or save on all ranks"
        )


def _track(variable: Any) -> None:
    """Prepare a variable for a missing value, and remember whether it was created as trainable."""
    kind: Any = type(variable)
    if not hasattr(kind, "may_be_elsewhere"):
        variable.__class__ = _tracking(kind)
        variable.made_trainable = variable.trainable if variable._value is None else variable._value.trainable


@cache
def _tracking(kind: Any) -> Any:
    """Derive a class of variables, from a Keras backend's, whose values can be deferred or elsewhere."""
    from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    class Variable(kind):
        may_be_elsewhere = True

        @property
        def value(self) -> Any:
            """The value; a deferred variable is allocated, except in a stateless scope."""
            if self._value is None:
                given = in_stateless_scope() and get_stateless_scope().get_current_value(self) is not None
                if not given and in_symbolic_scope() and not is_here(self):
                    import keras

                    return keras.ops.zeros(self._shape, dtype=self._dtype)  # only the shape matters here
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
