"""A backend of ``torch.distributed`` over mpi4py, for PyTorch as its wheels bring it.

``import torch`` registers it through the entry point group ``torch.backends``, under the names ``mpi`` and
``mpi4c10d``. Where ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` turns that off, ``import mpi4c10d`` does the same.
"""

from __future__ import annotations

__version__ = "0.1.0"


def register() -> None:
    """Register the backend. A second call changes nothing."""
    from mpi4c10d import registration

    registration.register()


import torch  # noqa: E402, F401  # calls register() while it is imported, which must be defined by then

register()

__all__ = ["register"]
