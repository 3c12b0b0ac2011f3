"""Data-, model- and hybrid-parallel training of any Keras model over MPI.

Importing this package imports neither Keras nor TensorFlow: public names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

#: Public name -> its module.
_NAMES = {
    "CheckpointError": "hyparflow.errors",
    "DataError": "hyparflow.errors",
    "HyparflowError": "hyparflow.errors",
    "Plan": "hyparflow.planning.plan",
    "PlanError": "hyparflow.errors",
    "RequestError": "hyparflow.errors",
    "Strategy": "hyparflow.training.strategy",
    "UnsupportedModel": "hyparflow.errors",
    "WorldError": "hyparflow.errors",
    "deferred": "hyparflow.graph.initialise",
    "fit": "hyparflow.training.strategy",
    "gather": "hyparflow.training.model_io",
    "graph_of": "hyparflow.graph.calls",
    "load_into": "hyparflow.checkpoints.export",
    "plan": "hyparflow.planning.planner",
    "refine": "hyparflow.planning.planner",
    "set_strategy": "hyparflow.training.dispatch",
}

__all__ = sorted(_NAMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'hyparflow' has no attribute {name!r}")
    return getattr(import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
