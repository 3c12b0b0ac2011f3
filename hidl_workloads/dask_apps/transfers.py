"""Data that workers sent to each other, according to their own logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Transfers:
    """All transfers of one run: bytes in total, and the bandwidth of each that is not too small to tell, in B/s."""

    bytes: int
    bandwidths: tuple[float, ...]

    @property
    def bandwidth(self) -> float | None:
        """The median bandwidth in B/s; None where no transfer was large enough."""
        return median(self.bandwidths) if self.bandwidths else None


def take(dask_worker: Any) -> list[tuple[int, float]]:
    """Take what a worker received out of its log: the bytes and the seconds of each transfer. Runs on the worker."""
    log = dask_worker.transfer_incoming_log
    taken = [(int(entry["total"]), float(entry["duration"])) for entry in log]
    log.clear()
    return taken


def gather(logs: Mapping[str, Iterable[tuple[int, float]]], ignore: int) -> Transfers:
    """Put the workers' logs together; transfers below ``ignore`` bytes count for the total only."""
    everything = [entry for log in logs.values() for entry in log]
    bandwidths = tuple(size / seconds for size, seconds in everything if size >= ignore)
    return Transfers(sum(size for size, _ in everything), bandwidths)
