"""Figures that a program of this package reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from hidl_workloads.metrics import Metric


@dataclass(frozen=True)
class RankMeasurements:
    """Measurements of the ranks.

    ``seconds``: of each timed step, the slowest rank's; ``first_step``: that of the first one, in which everything is
    compiled. ``bubbles``: for each rank the share of the timed steps in which it did not compute. ``peaks``: for each
    rank the most memory that its process ever held, in MiB. ``checksums``: for each rank that of its replica's weights.
    ``loss``: the last step's, in nats, mean over the replicas.
    """

    images: int
    seconds: Sequence[float]
    first_step: float
    bubbles: Sequence[float]
    peaks: Sequence[float]
    checksums: Sequence[str]
    loss: float


@dataclass(frozen=True)
class Predicted:
    """Predictions of the plan: seconds per step, the bubble of each partition, and the number of micro-batches."""

    seconds: float
    bubbles: Sequence[float]
    micro_batches: int


def figures(measured: RankMeasurements, predicted: Predicted) -> list[Metric]:
    """The metrics of a run."""
    seconds = median(measured.seconds)
    rates = [measured.images / each for each in measured.seconds]
    return [
        Metric("images_per_second", measured.images / seconds, "images/s", rates),
        Metric("step_time", seconds, "s", measured.seconds),
        Metric("predicted_step_time", predicted.seconds, "s", [predicted.seconds]),
        Metric("first_step_time", measured.first_step, "s", [measured.first_step]),
        Metric("bubble", fmean(measured.bubbles), "share", measured.bubbles),
        Metric("predicted_bubble", fmean(predicted.bubbles), "share", predicted.bubbles),
        Metric("peak_memory", max(measured.peaks), "MiB", measured.peaks),
        Metric("micro_batches", predicted.micro_batches, "micro-batches", [predicted.micro_batches]),
        Metric("weight_checksum", measured.checksums[0], "sha256", measured.checksums),
        Metric("loss", measured.loss, "nats", [measured.loss]),
    ]


def combined(hashes: Sequence[dict[str, str]], rank: int) -> list[tuple[str, str]]:
    """The whole model as ``rank`` sees it: each variable's name and hash, its own before those of other holders.

    ``hashes``: variable -> hash, for each rank of a replica. So ranks whose copies of a variable differ see different
    models.
    """
    seen: dict[str, str] = {}
    for each in (hashes[rank], *hashes):
        seen = {**each, **seen}
    return sorted(seen.items())
