"""Equal weights on all ranks: made so at the start, proved at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

_MOST_NAMES = 5


def broadcast(communicator: MPI.Comm, arrays: Iterable[NDArray[Any]]) -> None:
    """Overwrite ``arrays`` (contiguous, the same shapes and order everywhere) with those of rank 0."""
    for array in arrays:
        communicator.Bcast(array, root=0)


def require_equal(communicator: MPI.Comm, facts: Mapping[str, object], advice: str) -> None:
    """Raise ``ValueError`` on all ranks, with the names of what differs, unless all have equal ``facts``; collective.

    Facts are compared by ``repr``, and in their order.
    """
    own = {name: repr(fact) for name, fact in facts.items()}
    digests = communicator.allgather(hashlib.sha256(repr(own).encode()).hexdigest())
    odd = [rank for rank, found in enumerate(digests) if found != digests[0]]
    if not odd:
        return
    first, *others = communicator.allgather(own)
    names = dict.fromkeys(name for each in (first, *others) for name in each)
    differing = [name for name in names if any(each.get(name) != first.get(name) for each in others)]
    shown = ", ".join(differing[:_MOST_NAMES]) + (", ..." if len(differing) > _MOST_NAMES else "")
    raise ValueError(
        f"ranks {odd} of {communicator.size} differ from rank 0 in {shown or 'the order of parameters'}: {advice}"
    )


def checksum(weights: Iterable[tuple[str, NDArray[Any]]]) -> str:
    """Return the SHA-256, in hex, of all names, types, shapes and bytes, in the given order.

    Two ranks that trained together have bitwise equal weights; one that missed a single average has others.
    """
    digest = hashlib.sha256()
    for name, array in weights:
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
