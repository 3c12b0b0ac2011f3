"""The QR factorisation of a tall matrix whose rows are spread over ranks, and triangular systems.

TSQR (Demmel, Grigori, Hoemmen and Langou 2012, SIAM J. Sci. Comput. 34, A206-A239): each rank factorises its own rows,
pairs of factors R are stacked and factorised up a binary tree. It is as stable as Householder's QR, which the product
of the matrix with itself is not: that squares the condition number.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from mpi4py import MPI

from hidl_workloads.ml.blocks import split
from hidl_workloads.ml.devices import Device
from hidl_workloads.ml.streams import Array


def triangle(communicator: MPI.Comm, device: Device, rows: Array, block: int) -> Array:
    """The factor R of the matrix whose ``rows`` (rows, columns) all ranks have parts of: (columns, columns), on all.

    Its diagonal is not negative, so it is unique where the columns are independent. Factorised are ``block`` rows at a
    time: the work space is small. Collective.
    """
    xp, columns = device.xp, rows.shape[1]
    own = xp.zeros((columns, columns))
    for part in split(range(len(rows)), max(block, columns)):
        own = _stacked(xp, own, rows[part.start : part.stop])
    upper = device.host(own)
    distance = 1
    while distance < communicator.size:
        if communicator.rank % (2 * distance):
            communicator.Send(upper, communicator.rank - distance)
            break
        if communicator.rank + distance < communicator.size:
            other = np.empty_like(upper)
            communicator.Recv(other, communicator.rank + distance)
            upper = _stacked(np, upper, other)
        distance *= 2
    upper = np.ascontiguousarray(upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None])
    communicator.Bcast(upper)
    return device.array(upper)


def _stacked(xp: ModuleType, upper: Array, below: Array) -> Array:
    return xp.ascontiguousarray(xp.linalg.qr(xp.concatenate((upper, below)), mode="r"))


def condition(upper: Array) -> float:
    """The condition number of a factor R on the host, and so of the matrix: inf where it is singular."""
    singular = np.linalg.svd(upper, compute_uv=False)
    return float(singular[0] / singular[-1]) if singular[-1] > 0 else float("inf")
