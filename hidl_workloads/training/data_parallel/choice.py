"""Choice of the kind of sum for a communicator, and checks that all ranks have the same gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import get_args

from mpi4py import MPI

from hidl_workloads.training.data_parallel import shared_memory
from hidl_workloads.training.data_parallel.allreduce import Allreduce
from hidl_workloads.training.data_parallel.buckets import Bucket, Gradient
from hidl_workloads.training.data_parallel.compression import CompressedAllreduce, Compression, Halves
from hidl_workloads.training.data_parallel.weights import require_equal


def choose(
    communicator: MPI.Comm,
    buckets: Sequence[Bucket],
    halves: Halves | None = None,
    *,
    share: float = 1,
    share_memory: bool = True,
) -> Allreduce:
    """Return the kind of sum that suits ``communicator`` and has room for the ``buckets``; collective.

    Shared memory where several ranks of each node share some (and ``share_memory`` is left on), else MPI's sums. All
    are multiplied by ``share``. With ``halves``, what goes between nodes is compressed; on one node, where the caller
    asks for it, everything is.
    """
    needed = sum(bucket.nbytes for bucket in buckets)
    node = shared_memory.node_of(communicator)
    try:
        worth_it = halves is None or shared_memory.spans_nodes(communicator, node)
        if share_memory and worth_it and shared_memory.usable(communicator, node, needed):
            if halves is None:
                return shared_memory.SharedMemoryAllreduce(communicator, node, share=share)
            between = partial(CompressedAllreduce, halves=halves)
            return shared_memory.SharedMemoryAllreduce(communicator, node, between, share=share, compressed=halves.name)
    finally:
        node.Free()
    return Allreduce(communicator, share) if halves is None else CompressedAllreduce(communicator, halves, share)


def check(compression: str, accumulate: int) -> None:
    """Raise ``ValueError`` for an unknown compression or fewer than one backward pass."""
    if compression not in get_args(Compression):
        raise ValueError(f"compression must be one of {', '.join(get_args(Compression))}, not {compression!r}")
    if accumulate < 1:
        raise ValueError(f"accumulate must be 1 or more backward passes, not {accumulate}")


def require_the_same(communicator: MPI.Comm, gradients: Sequence[Gradient], *options: object) -> None:
    """Raise ``ValueError`` on all ranks where one has other gradients, or other options; collective."""
    require_equal(
        communicator,
        {each.name: each for each in gradients} | {"options": options},
        "all ranks must train the same parameters (names, sizes, types, order) with the same bucket size, compression "
        "and accumulation",
    )
