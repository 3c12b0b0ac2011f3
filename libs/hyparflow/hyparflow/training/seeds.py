"""Random numbers that all ranks draw alike."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from hyparflow.training.collectives import meet


def share_random_state(comm: Any) -> None:
    """Give all ranks rank 0's state of Python's and NumPy's random numbers; collective.

    Keras' initializers and layers draw their seeds from Python's. Rank 0 goes on where it was: what it draws is what
    one process would draw after the same ``keras.utils.set_random_seed``.
    """
    meet(comm)
    of_python, of_numpy = comm.bcast((random.getstate(), np.random.get_state()), root=0)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def shared_seed(comm: Any) -> int:
    """A seed that follows from rank 0's state, which stays as it is; the same on all ranks; collective."""
    other = random.Random()
    other.setstate(random.getstate())
    meet(comm)
    return int(comm.bcast(other.randrange(2**31), root=0))
