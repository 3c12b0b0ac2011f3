"""Step times at scales that cannot be run: stages, network, stragglers. Imports neither Keras nor TensorFlow."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Public name -> module. Fetched when first used: planning stands on the network here, and the rest on planning.
_NAMES = {
    "NETWORKS": "network",
    "Network": "network",
    "Stragglers": "stragglers",
    "Cluster": "simulation",
    "Simulation": "simulation",
    "simulate": "simulation",
    "Estimate": "scaling",
    "estimate": "scaling",
    "load": "library",
}

__all__ = sorted(_NAMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'hyparflow.simulate' has no attribute {name!r}")
    return getattr(import_module(f"hyparflow.simulate.{_NAMES[name]}"), name)
