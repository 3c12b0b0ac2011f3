"""Models that are built without memory for their variables, of which each rank then initialises its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred() -> Iterator[None]:
    """Build a model in this context, and none of its variables takes memory until ``initialise``.

    The values are those that the model would have had at once, from the same ``keras.utils.set_random_seed``: Keras'
    initializers draw their seeds when the layer is made. ``compile()`` the model outside this context, for optimizers
    and metrics have variables that cannot wait.
    """
    from keras import StatelessScope
    from keras.src.backend.common import global_state

    before = global_state.get_global_attribute("uninitialized_variables") or []
    try:
        with StatelessScope(initialize_variables=False):
            yield
    finally:
        # Keras would initialise all that wait as soon as any other scope ends.
        global_state.set_global_attribute("uninitialized_variables", list(before))


def initialise(variables: Iterable[Any]) -> None:
    """Give those Keras variables that have no value yet their initial value."""
    for variable in variables:
        if variable._value is None:
            variable._deferred_initialize()
