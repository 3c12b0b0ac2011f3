"""The neighbourhood of ``-N``: who sends to whom, as OMB lays it out.

``cart:D:R``: a periodic grid of D dimensions that are as equal as ``MPI_Dims_create`` makes them; neighbours are all
within R steps in each dimension. ``graph:FILE``: an edge ``FROM,TO`` a line, lines that begin with # are remarks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_workloads.omb.options import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Neighborhood:
    """By rank: from whom it receives and to whom it sends, in the order of the blocks in its buffers."""

    sources: tuple[tuple[int, ...], ...]
    destinations: tuple[tuple[int, ...], ...]
    dimensions: tuple[int, ...] = ()
    """Of the grid; a graph has none."""

    @property
    def most(self) -> int:
        """The largest number of neighbours that a rank sends to or receives from."""
        return max(len(neighbors) for neighbors in (*self.sources, *self.destinations))

    def block_for(self, source: int, rank: int, occurrence: int) -> int:
        """Return the number of the block that ``source`` sends to ``rank``, by the edge of this number, from 0."""
        blocks = [block for block, to in enumerate(self.destinations[source]) if to == rank]
        return blocks[occurrence]

    def communicator(self, parent: MPI.Comm) -> MPI.Comm:
        """``parent`` with this topology; the caller frees it."""
        rank = parent.rank
        return parent.Create_dist_graph_adjacent(self.sources[rank], self.destinations[rank])


@lru_cache(maxsize=4)
def neighborhood(text: str, ranks: int) -> Neighborhood:
    """The neighbourhood that ``-N`` gives to so many ranks; raises ``UsageError`` where they do not fit."""
    kind, _, rest = text.partition(":")
    if kind == "graph":
        return _graph(rest, ranks)
    dimensions, _, radius = rest.partition(":")
    return _grid(int(dimensions), int(radius), ranks)


def _grid(number: int, radius: int, ranks: int) -> Neighborhood:
    from mpi4py import MPI

    dimensions = tuple(MPI.Compute_dims(ranks, number))
    if radius > (min(dimensions) - 1) // 2:
        raise UsageError(
            f"a radius of {radius} in a grid of {' x '.join(map(str, dimensions))} ranks reaches some ranks twice: "
            f"each dimension must be at least {2 * radius + 1} (use more ranks, another -N cart:D:R, or a graph)"
        )
    steps = [step for step in product(range(-radius, radius + 1), repeat=number) if any(step)]
    places = list(product(*(range(dimension) for dimension in dimensions)))
    number_of = {place: rank for rank, place in enumerate(places)}
    neighbors = tuple(
        tuple(
            number_of[tuple((at + by) % size for at, by, size in zip(place, step, dimensions, strict=True))]
            for step in steps
        )
        for place in places
    )
    return Neighborhood(neighbors, neighbors, dimensions)


def _graph(file: str, ranks: int) -> Neighborhood:
    if not file:
        raise UsageError("-N graph requires a file of edges: graph:FILE, with FROM,TO in each line")
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the graph cannot be read: {error}") from error
    sources: list[list[int]] = [[] for _ in range(ranks)]
    destinations: list[list[int]] = [[] for _ in range(ranks)]
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#") or not line.strip():
            continue
        words = [word.strip() for word in line.split(",")]
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise UsageError(f"{file}, line {number}: {line!r} is not an edge FROM,TO")
        start, end = map(int, words)
        if max(start, end) >= ranks:
            raise UsageError(f"{file}, line {number}: {line!r} requires more than {ranks} ranks")
        destinations[start].append(end)
        sources[end].append(start)
    return Neighborhood(tuple(map(tuple, sources)), tuple(map(tuple, destinations)))
