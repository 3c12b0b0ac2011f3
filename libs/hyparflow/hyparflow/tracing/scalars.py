"""TensorBoard scalars about the pipeline: step time, busy time and bubble, measured and predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hyparflow.engine.engine import Span

if TYPE_CHECKING:
    from hyparflow.planning.plan import Plan

_BUSY = ("forward", "backward", "update")


@dataclass(frozen=True)
class StepTimes:
    """A rank's step: ``seconds`` from its first span's begin to its last one's end, ``busy`` of them computing."""

    step: int
    seconds: float
    busy: float

    @classmethod
    def of(cls, step: int, spans: Sequence[Span]) -> StepTimes:
        """The sums of a step's spans."""
        begin, end = min(span.begin for span in spans), max(span.end for span in spans)
        return cls(step, end - begin, sum(span.end - span.begin for span in spans if span.kind in _BUSY))


class Scalars:
    """Writes them, on rank 0."""

    def __init__(self, directory: str | Path, plan: Plan) -> None:
        """``directory``: where event files go, as TensorBoard's ``--logdir`` takes it."""
        import tensorflow as tf
        from tensorflow.compat.v1 import SummaryMetadata

        self._write = tf.summary.write
        # What tf.summary.scalar writes; the function itself needs the package tensorboard, the format does not.
        self._metadata = SummaryMetadata()
        self._metadata.plugin_data.plugin_name = "scalars"
        self._metadata.data_class = 1  # DATA_CLASS_SCALAR
        self._writer = tf.summary.create_file_writer(str(directory))
        self._plan = plan

    def write(self, ranks: Iterable[StepTimes]) -> None:
        """One step, of every rank in the order of the world."""
        ranks = list(ranks)
        step = ranks[0].step
        slowest = max(times.seconds for times in ranks)
        predicted = self._plan.prediction
        with self._writer.as_default(step=step):
            self._scalar("pipeline/step_seconds/measured", slowest)
            self._scalar("pipeline/step_seconds/predicted", predicted.step_seconds)
            for rank, times in enumerate(ranks):
                partition = rank % self._plan.partitions
                self._scalar(f"pipeline/busy_seconds/rank_{rank}", times.busy)
                self._scalar(f"pipeline/bubble/rank_{rank}/measured", 1 - times.busy / slowest)
                self._scalar(f"pipeline/bubble/rank_{rank}/predicted", predicted.bubble[partition])

    def _scalar(self, name: str, value: float) -> None:
        self._write(name, np.float32(value), metadata=self._metadata)

    def close(self) -> None:
        """Write everything out."""
        self._writer.close()
