"""Models that are built without memory for their variables, of which each rank then initialises its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hyparflow.errors import RequestError


@contextmanager
def deferred() -> Iterator[None]:
    """Build a model in this context, and none of its variables takes memory until ``initialise``.

    The values are those that the model would have had at once, from the same ``keras.utils.set_random_seed``: Keras'
    initializers draw their seeds when the layer is made. ``compile()`` the model outside this context, for optimizers
    and metrics have variables that cannot wait.

    :raises RequestError: where it is compiled in this context.
    """
    from keras import StatelessScope
    from keras.src.backend.common import global_state

    before = global_state.get_global_attribute("uninitialized_variables") or []
    try:
        with StatelessScope(initialize_variables=False):
            yield
    except ValueError as error:
        if "stateless scope" not in str(error):
            raise
        raise RequestError(
            "a variable that cannot wait for its value was made in the scope: build the model inside strategy.scope(), "
            "and compile() it, or make its optimizer, after that"
        ) from error
    finally:
        # Keras would initialise all that wait as soon as any other scope ends.
        global_state.set_global_attribute("uninitialized_variables", list(before))


def initialise(variables: Iterable[Any]) -> None:
    """Give those Keras variables that have no value yet their initial value."""
    for variable in variables:
        if variable._value is None:
            variable._deferred_initialize()
