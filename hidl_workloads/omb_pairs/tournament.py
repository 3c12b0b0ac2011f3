"""The tournament: each round at once on all its pairs, each pair as often as there are repetitions, its median kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING

from hidl_workloads import metrics
from hidl_workloads.metrics import Metric
from hidl_workloads.omb_pairs import exchange
from hidl_workloads.omb_pairs.schedule import Pair, rounds
from hidl_workloads.parameters import OmbPairs

if TYPE_CHECKING:
    from mpi4py import MPI

Values = dict[Pair, float]


def run(communicator: MPI.Comm, parameters: OmbPairs) -> None:
    """Measure every pair, print the pairs on rank 0 and write the metrics document; every rank calls this.

    Those who meet are the nodes, each by its first rank, or on one node alone its ranks. Ends all ranks where there are
    fewer than two of them.
    """
    hosts = communicator.allgather(_host())
    players = players_of(hosts)
    if len(players) < 2:
        raise SystemExit("omb_pairs: requires two ranks or more, preferably on two nodes or more")
    schedule = [[(players[a], players[b]) for a, b in of_round] for of_round in rounds(len(players))]
    latency = measure(
        communicator,
        schedule,
        parameters.repetitions,
        lambda peer: exchange.latency(
            communicator, peer, parameters.latency_size, parameters.latency_iterations, 10 * parameters.warmup
        ),
    )
    bandwidth = measure(
        communicator,
        schedule,
        parameters.repetitions,
        lambda peer: exchange.bandwidth(
            communicator, peer, parameters.bandwidth_size, parameters.bandwidth_iterations, parameters.warmup
        ),
    )
    names = names_of(hosts)
    found = [as_metric("latency", "us", latency, names), as_metric("bandwidth", "MB/s", bandwidth, names)]
    if communicator.rank == 0:
        print(format_pairs(names, latency, bandwidth), flush=True)
    metrics.report(communicator, program="omb_pairs", parameters=asdict(parameters), versions={}, metrics=found)


def players_of(hosts: Sequence[str]) -> list[int]:
    """The ranks that meet: the first of each host, or all where there is one host; ``hosts``: that of each rank."""
    if len(set(hosts)) == 1:
        return list(range(len(hosts)))
    return sorted(hosts.index(host) for host in set(hosts))


def measure(
    communicator: MPI.Comm, schedule: Sequence[Sequence[Pair]], repetitions: int, with_peer: Callable[[int], float]
) -> Values:
    """The median of each pair's repetitions, on all ranks. The pairs of a round begin together, when all are there."""
    mine: dict[Pair, list[float]] = {}
    for _ in range(repetitions):
        for of_round in schedule:
            communicator.Barrier()
            for pair in of_round:
                if communicator.rank in pair:
                    value = with_peer(pair[0] + pair[1] - communicator.rank)
                    if communicator.rank == pair[0]:
                        mine.setdefault(pair, []).append(value)
    everyone = communicator.allgather({pair: median(values) for pair, values in mine.items()})
    return dict(sorted((pair, value) for values in everyone for pair, value in values.items()))


def names_of(hosts: Sequence[str]) -> list[str]:
    """Return the name of each rank: its host, or host and rank if all ranks are on one host."""
    return list(hosts) if len(set(hosts)) > 1 else [f"{host}:{rank}" for rank, host in enumerate(hosts)]


def as_metric(name: str, unit: str, values: Values, names: Sequence[str]) -> Metric:
    """The metric of all pairs: its value is their median."""
    pairs = [(names[first], names[second]) for first, second in values]
    return Metric(name, median(values.values()), unit, list(values.values()), pairs=pairs)


def format_pairs(names: Sequence[str], latency: Values, bandwidth: Values) -> str:
    """One line for each pair."""
    lines = [f"# {'Pair':<30}{'Latency (us)':>18}{'Bandwidth (MB/s)':>18}"]
    for first, second in latency:
        figures = f"{latency[first, second]:>18.2f}{bandwidth[first, second]:>18.2f}"
        lines.append(f"{names[first] + ' ' + names[second]:<32}{figures}")
    return "\n".join(lines)


def _host() -> str:
    from mpi4py import MPI

    return str(MPI.Get_processor_name())
