"""hyparflow: data-, model- and hybrid-parallel training of any Keras model over MPI."""

from __future__ import annotations

__version__ = "0.1.0"
