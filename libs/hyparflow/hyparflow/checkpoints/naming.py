"""The names under which variables lie in a checkpoint: alike whatever the partitioning, and in any process.

A model's variables have the names of ``hyparflow.graph.from_keras.variables_of`` (their paths). An optimizer's begin
with ``optimizer/`` (``loss_scale/`` for those of mixed precision's) in place of the optimizer's own name, which counts
the optimizers that the process has made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def of_optimizer(optimizer: Any, variables: Iterable[Any] | None = None) -> dict[str, Any]:
    """Name -> variable of a built optimizer, or of those of its variables."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    found = {}
    for variable in optimizer.variables if variables is None else variables:
        first, _, rest = variable.path.partition("/")
        prefix = "optimizer" if first == inner.name else "loss_scale"
        found[f"{prefix}/{rest}"] = variable
    return found


def is_of_optimizer(name: str) -> bool:
    """Whether it is the name of a variable of an optimizer."""
    return name.partition("/")[0] in ("optimizer", "loss_scale")


def unbuild(optimizer: Any) -> None:
    """Make an optimizer as it was before it was built for variables; its values are lost."""
    fresh = type(optimizer).from_config(optimizer.get_config())
    vars(optimizer).clear()
    vars(optimizer).update(vars(fresh))
