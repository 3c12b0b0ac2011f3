"""The model of a program, ready to be cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hidl_workloads.parameters import Hyparflow

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float64": "float64"}


def build_model(parameters: Hyparflow, make: Callable[[], Any]) -> Any:
    """The compiled model that ``make`` gives, the same in each process, in the precision that was asked for.

    Its variables take no memory yet: the rank that computes a stage allocates those of that stage.
    """
    import hyparflow
    import keras

    keras.utils.set_random_seed(parameters.seed)
    keras.config.set_floatx("float64" if parameters.precision == "float64" else "float32")
    keras.config.set_dtype_policy(_POLICIES[parameters.precision])
    with hyparflow.deferred():
        model = make()
    model.compile(
        keras.optimizers.SGD(parameters.learning_rate, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model
