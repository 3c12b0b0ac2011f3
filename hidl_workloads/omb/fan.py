"""Congestion: the ranks of all other nodes send to those of the first at once (fan in), or receive from them (fan out).

The nodes are ordered by name; the n-th rank of the first node is the partner of the n-th rank of each other node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hidl_workloads.omb.benchmark import BANDWIDTH, Benchmark, Point, Result
from hidl_workloads.omb.options import Options, UsageError
from hidl_workloads.omb.timing import Timed, time_exchange
from hidl_workloads.omb.window import in_megabytes, receiver, sender


@dataclass(frozen=True)
class Fan:
    """The position of one rank."""

    at_root: bool
    """Its node is the first."""
    peers: list[int]
    """Of a rank of the first node: one on each other node; of others: the one on the first."""
    nodes: int
    ranks_per_node: int


def fan_of(rank: int, names: Sequence[str]) -> Fan:
    """Return the position of ``rank`` on nodes of these names; ``UsageError`` for one node or unequal numbers."""
    nodes: dict[str, list[int]] = {name: [] for name in sorted(set(names))}
    for number, name in enumerate(names):
        nodes[name].append(number)
    counts = {name: len(ranks) for name, ranks in nodes.items()}
    if len(nodes) < 2:
        raise UsageError(f"this test requires ranks on more than one node; all are on {next(iter(nodes))}")
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise UsageError(f"this test requires the same number of ranks on every node: {told}")
    first, *others = nodes.values()
    place = nodes[names[rank]].index(rank)
    at_root = rank in first
    peers = [ranks[place] for ranks in others] if at_root else [first[place]]
    return Fan(at_root, peers, len(nodes), len(first))


def fits(options: Options, ranks: int) -> None:
    """Raise ``UsageError`` as ``fan_of`` does, for the ranks of the world; all of them call this."""
    _own_fan()


def _own_fan() -> Fan:
    from mpi4py import MPI

    return fan_of(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allgather(node_name()))


def measure_in(point: Point) -> Result:
    """MB/s that arrive at the first node."""
    return _measure(point, inwards=True)


def measure_out(point: Point) -> Result:
    """MB/s that leave the first node."""
    return _measure(point, inwards=False)


def _measure(point: Point, *, inwards: bool) -> Result:
    fan = _own_fan()
    sends = fan.at_root is not inwards
    way = sender if sends else receiver
    timed = time_exchange(point, way(point, point.options.window_size, fan.peers, mark=0))
    senders = fan.ranks_per_node * (fan.nodes - 1 if inwards else 1)
    seconds = point.communicator.allreduce(timed.seconds if sends else 0.0) / senders
    each = _samples(point, timed, fan, sends)
    moved = point.size * point.options.window_size * fan.ranks_per_node * (fan.nodes - 1)
    return in_megabytes(point, Timed(seconds, each, timed.errors), moved)


def _samples(point: Point, timed: Timed, fan: Fan, sends: bool) -> list[float]:
    """Return the samples of the lowest rank that sends, at rank 0."""
    everyone: list[list[float] | None] = point.communicator.allgather(timed.each if sends else None)
    return next(each for each in everyone if each is not None)


def node_name() -> str:
    """The node that this rank is on."""
    from mpi4py import MPI

    return str(MPI.Get_processor_name())


_OPTIONS = "mixWbcuTzd"
BENCHMARKS = tuple(
    Benchmark(name, "MPI%s Bandwidth Test", measure, "bandwidth", _OPTIONS, BANDWIDTH, check=fits)
    for name, measure in (("bw_fan_in", measure_in), ("bw_fan_out", measure_out))
)
