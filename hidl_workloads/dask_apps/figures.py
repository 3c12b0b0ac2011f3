"""From what the client saw to the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from hidl_workloads.dask_apps.transfers import Transfers
from hidl_workloads.metrics import Metric


@dataclass(frozen=True)
class ClientMeasurements:
    """Measurements of the client: seconds and transfers of each timed run, and the bytes of data per run.

    ``by_mpi``: bytes that all workers sent through MPI in all runs; None if the protocol is not mpi4dask's.
    """

    seconds: tuple[float, ...]
    transfers: tuple[Transfers, ...]
    bytes: int
    by_mpi: int | None
    versions: dict[str, str]


def figures(measured: ClientMeasurements, workers: int) -> list[Metric]:
    """The metrics. A GB is 10**9 bytes; throughput is that of the data worked on, not of what was sent."""
    took = median(measured.seconds)
    sent = [run.bytes for run in measured.transfers]
    bandwidths = [run.bandwidth / 1e9 for run in measured.transfers if run.bandwidth is not None]
    found = [
        Metric("time", took, "s", measured.seconds),
        Metric("throughput", measured.bytes / took / 1e9, "GB/s", [measured.bytes / s / 1e9 for s in measured.seconds]),
        Metric("workers", workers, "workers", [workers]),
        Metric("transferred", median(sent), "B", sent),
    ]
    if bandwidths:
        found.append(Metric("transfer_bandwidth", median(bandwidths), "GB/s", bandwidths))
    if measured.by_mpi is not None:
        found.append(Metric("sent_by_mpi", measured.by_mpi, "B", [measured.by_mpi]))
    return found
