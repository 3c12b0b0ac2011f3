"""One description of each collective: its buffers, its call, and what each rank must have received.

The blocking, non-blocking and persistent benchmarks are made from it alike. Sizes are OMB's: ``count`` elements are
one message, which is what a rank sends to each (alltoall, scatter), to all (allgather, bcast) or contributes to a
reduction, and what reduce_scatter shares out among the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hidl_workloads.omb.collective_shape import Ends, Shape, in_place

if TYPE_CHECKING:
    from numpy.typing import NDArray

Vectors = Callable[[int], "NDArray[Any]"]
"""What the rank with this number has to send: ``Collective.sends`` elements."""


def _sum() -> Any:
    from mpi4py import MPI

    return MPI.SUM


def _total(shape: Shape, of: Vectors) -> NDArray[Any]:
    total = of(0).copy()
    for rank in range(1, shape.ranks):
        total += of(rank)
    return total


def _concatenated(parts: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    import numpy as np

    return np.concatenate(parts) if parts else None


def _one_each(shape: Shape, of: Vectors) -> NDArray[Any] | None:
    return _concatenated([of(source) for source in shape.sources])


def _mine_of_each(shape: Shape, of: Vectors) -> NDArray[Any] | None:
    """The block for this rank of what each source sends."""
    parts, met = [], dict.fromkeys(shape.sources, 0)
    for source in shape.sources:
        block = shape.rank
        if shape.neighborhood:
            block = shape.neighborhood.block_for(source, shape.rank, met[source])
            met[source] += 1
        parts.append(of(source)[block * shape.count : (block + 1) * shape.count])
    return _concatenated(parts)


def _mine_of_root(shape: Shape, of: Vectors) -> NDArray[Any] | None:
    if shape.in_place:
        return None  # the root's block stays where it is
    return of(shape.root)[shape.rank * shape.count : (shape.rank + 1) * shape.count]


def _my_portion(shape: Shape, of: Vectors) -> NDArray[Any]:
    start = sum(shape.portions[: shape.rank])
    return _total(shape, of)[start : start + shape.portions[shape.rank]]


def _my_equal_portion(shape: Shape, of: Vectors) -> NDArray[Any]:
    portion = shape.count // shape.ranks
    return _total(shape, of)[portion * shape.rank : portion * (shape.rank + 1)]


def _nothing(shape: Shape, of: Vectors) -> NDArray[Any] | None:
    return None


def _message(shape: Shape) -> int:
    return shape.count


def _from_all(shape: Shape) -> int:
    return shape.count * len(shape.sources)


def _to_all(shape: Shape) -> int:
    return shape.count * len(shape.destinations)


def _at_start(shape: Shape) -> int:
    return 0


def _at_own_block(shape: Shape) -> int:
    return shape.count * shape.rank


@dataclass(frozen=True)
class Collective:
    """One collective, under MPI's name in lower case."""

    name: str
    arguments: Callable[[Ends], tuple[Any, ...]]
    """Of mpi4py's call whose name begins with a capital letter."""
    sends: Callable[[Shape], int] = _message
    """Elements that a rank has to send: its vector."""
    receives: Callable[[Shape], int] = _message
    """Elements of the buffer that it receives into."""
    expected: Callable[[Shape, Vectors], NDArray[Any] | None] = _nothing
    """What a rank must have received; None: nothing."""
    own: Callable[[Shape], int] | None = None
    """With ``MPI_IN_PLACE``: where in the receive buffer the rank's vector lies; None: in the buffer it sends from."""
    in_place: bool = True
    """There is a form with ``MPI_IN_PLACE``: of a rooted one at the root, else on all ranks."""
    pickled: Callable[[Ends], tuple[Any, ...]] | None = None
    """Arguments of the call in lower-case letters, that pickles; None: there is none."""
    blocks: bool = False
    """Some rank has a message for each rank in one buffer: -M is about that."""
    rooted: bool = False
    reduces: bool = False
    neighbors: bool = False
    one_buffer: bool = False
    """The root sends from the buffer that the others receive into."""


def _root_alone(ends: Ends, argument: Any) -> Any:
    return argument if ends.shape.at_root else None


def _portion(ends: Ends) -> int:
    return ends.shape.count // ends.shape.ranks


_ALLGATHER = Collective(
    "allgather",
    lambda e: (e.send(), e.receive()),
    receives=_from_all,
    expected=_one_each,
    own=_at_own_block,
    pickled=lambda e: (e.object(),),
    blocks=True,
)
_ALLTOALL = Collective(
    "alltoall",
    lambda e: (e.send(), e.receive()),
    sends=_to_all,
    receives=_from_all,
    expected=_mine_of_each,
    own=_at_start,
    pickled=lambda e: (e.objects(),),
    blocks=True,
)
_GATHER = Collective(
    "gather",
    lambda e: (e.send(), _root_alone(e, e.receive()), e.shape.root),
    receives=_from_all,
    expected=lambda shape, of: _one_each(shape, of) if shape.at_root else None,
    own=_at_own_block,
    pickled=lambda e: (e.object(), e.shape.root),
    blocks=True,
    rooted=True,
)
_SCATTER = Collective(
    "scatter",
    lambda e: (_root_alone(e, e.send_always()), in_place() if e.shape.in_place else e.receive(), e.shape.root),
    sends=_to_all,
    expected=_mine_of_root,
    pickled=lambda e: (_root_alone(e, e.objects()), e.shape.root),
    blocks=True,
    rooted=True,
)
_ALL = (
    _ALLGATHER,
    replace(_ALLGATHER, name="allgatherv", arguments=lambda e: (e.send(), e.receive_blocks()), pickled=None),
    Collective(
        "allreduce",
        lambda e: (e.send(), e.receive(), _sum()),
        expected=_total,
        own=_at_start,
        pickled=lambda e: (e.object(), _sum()),
        reduces=True,
    ),
    _ALLTOALL,
    replace(_ALLTOALL, name="alltoallv", arguments=lambda e: (e.send_blocks(), e.receive_blocks()), pickled=None),
    replace(
        _ALLTOALL,
        name="alltoallw",
        arguments=lambda e: (e.send_typed_blocks(), e.receive_typed_blocks()),
        pickled=None,
    ),
    Collective("barrier", lambda e: (), sends=_at_start, receives=_at_start, in_place=False, pickled=lambda e: ()),
    Collective(
        "bcast",
        lambda e: (e.receive(), e.shape.root),
        expected=lambda shape, of: of(shape.root),
        own=_at_start,
        in_place=False,
        pickled=lambda e: (_root_alone(e, e.object()), e.shape.root),
        rooted=True,
        one_buffer=True,
    ),
    _GATHER,
    replace(
        _GATHER,
        name="gatherv",
        arguments=lambda e: (e.send(), _root_alone(e, e.receive_blocks()), e.shape.root),
        pickled=None,
    ),
    Collective(
        "reduce",
        lambda e: (e.send(), _root_alone(e, e.receive()), _sum(), e.shape.root),
        expected=lambda shape, of: _total(shape, of) if shape.at_root else None,
        own=_at_start,
        pickled=lambda e: (e.object(), _sum(), e.shape.root),
        rooted=True,
        reduces=True,
    ),
    Collective(
        "reduce_scatter",
        lambda e: (
            e.send(),
            e.receive(None if e.shape.in_place else e.shape.portions[e.shape.rank]),
            e.shape.portions,
            _sum(),
        ),
        expected=_my_portion,
        own=_at_start,
        reduces=True,
    ),
    Collective(
        "reduce_scatter_block",
        lambda e: (e.send(_portion(e)), e.receive(_portion(e)), _sum()),
        expected=_my_equal_portion,
        own=_at_start,
        reduces=True,
    ),
    _SCATTER,
    replace(
        _SCATTER,
        name="scatterv",
        arguments=lambda e: (
            _root_alone(e, e.send_blocks_always()),
            in_place() if e.shape.in_place else e.receive(),
            e.shape.root,
        ),
        pickled=None,
    ),
)
COLLECTIVES = {collective.name: collective for collective in _ALL}
NEIGHBORHOOD_COLLECTIVES = {
    f"neighbor_{name}": replace(COLLECTIVES[name], name=f"neighbor_{name}", in_place=False, neighbors=True)
    for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")
}
