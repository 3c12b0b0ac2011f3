"""Recorded step times: timelines in Chrome's trace format, and TensorBoard scalars.

Steps are measured on every rank, and shown beside the plan's prediction. Chrome's format (chrome://tracing, Perfetto)
has one process per rank, see "Trace Event Format",
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (complete events "X" with ``ts`` and
``dur`` in microseconds, metadata events "M").
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.engine.engine import Span, StepResult

if TYPE_CHECKING:
    from hyparflow.planning.plan import Plan
    from hyparflow.training.session import Session


_LANES = {
    "forward": "compute",
    "backward": "compute",
    "wait": "messages",
    "finish": "messages",
    "allreduce": "allreduce",
    "update": "update",
}
#: Steps between two writes of scalars, each of which needs a message from every rank.
_FLUSH = 10
#: The rows of a rank, from top to bottom.
LANES = ("compute", "messages", "allreduce", "update", "predicted")
_BUSY = ("forward", "backward", "update")


class Recorder:
    """A collector of the spans of a training. Collective: all ranks create it, pass it every step, and close it."""

    def __init__(
        self, session: Session, trace: str | Path | None, steps: tuple[int, int], tensorboard: str | Path | None
    ) -> None:
        """Start to record; collective.

        Args:
            session: The session of the training.
            trace: The file for the timeline, or None.
            steps: The first and last step of the timeline.
            tensorboard: The directory for scalars, or None.
        """
        self.wanted = trace is not None or tensorboard is not None
        self._session = session
        self._trace = None if trace is None else Path(trace)
        self._first, self._last = steps
        self._events: list[Event] = []
        self._times: list[StepTimes] = []
        self._scalars = None
        self._origin = 0.0
        if self.wanted:
            if tensorboard is not None and session.comm.rank == 0:
                self._scalars = Scalars(tensorboard, session.plan)
            self._writes_scalars = tensorboard is not None
            # The clocks of ranks have arbitrary origins. All ranks leave the barrier within the time of a message.
            session.comm.Barrier()
            self._origin = time.perf_counter()
        session.engine.options = replace(session.engine.options, trace=self.wanted)

    def step(self, number: int, result: StepResult) -> None:
        """Record the spans of step ``number`` (from 1)."""
        if not result.spans:
            return
        if self._writes_scalars:
            self._times.append(StepTimes.of(number, result.spans))
            if len(self._times) == _FLUSH:
                self._flush()
        if self._trace is not None and self._first <= number <= self._last:
            begun = min(span.begin for span in result.spans)
            self._events += self._measured(number, result.spans) + self._predicted(number, begun - self._origin)
            if number == self._last:
                self._write()

    def close(self) -> None:
        """Write everything that has not been written yet."""
        if not self.wanted:
            return
        if self._writes_scalars:
            self._flush()
        if self._scalars is not None:
            self._scalars.close()
        if self._trace is not None:
            self._write()
        self._session.engine.options = replace(self._session.engine.options, trace=False)

    def _measured(self, number: int, spans: Sequence[Span]) -> list[Event]:
        return [
            Event(_name(span), _LANES[span.kind], span.begin - self._origin, span.end - self._origin, number)
            for span in spans
        ]

    def _predicted(self, number: int, begun: float) -> list[Event]:
        """Return the predicted spans of this rank's part of the step, shifted to its start."""
        own = self._session.plan.timeline.partitions[self._session.seat.partition]
        return [
            Event(
                f"{span.action.kind} {span.action.stage} [{span.action.micro_batch}]",
                "predicted",
                begun + span.begin,
                begun + span.end,
                number,
            )
            for span in own
        ]

    def _write(self) -> None:
        """Write the trace of all ranks on rank 0, once."""
        path, self._trace = self._trace, None
        session, plan = self._session, self._session.plan
        label = f"rank {session.comm.rank}: partition {session.seat.partition} of replica {session.seat.replica}"
        gathered = session.comm.gather((self._events, label), root=0)
        if gathered is not None and path is not None:
            events, labels = zip(*gathered, strict=True)
            write_trace(path, events, [f"{each} ({plan.schedule})" for each in labels])

    def _flush(self) -> None:
        gathered = self._session.comm.gather(self._times, root=0)
        self._times = []
        if self._scalars is not None:
            for times in zip(*gathered, strict=True):
                self._scalars.write(times)


def _name(span: Span) -> str:
    return span.kind if span.stage < 0 else f"{span.kind} {span.stage} [{span.micro_batch}]"


@dataclass(frozen=True)
class Event:
    """An activity of a rank in ``lane`` from ``begin`` to ``end``, in seconds since the recording began."""

    name: str
    lane: str
    begin: float
    end: float
    step: int


def trace_document(ranks: Sequence[Iterable[Event]], labels: Sequence[str]) -> dict[str, Any]:
    """Return the trace of all ranks; ``labels`` are their names."""
    events: list[dict[str, Any]] = []
    for rank, (own, label) in enumerate(zip(ranks, labels, strict=True)):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": label}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        events += [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": lane}}
            for number, lane in enumerate(LANES)
        ]
        events += [
            {
                "ph": "X",
                "name": event.name,
                "cat": event.lane,
                "pid": rank,
                "tid": LANES.index(event.lane),
                "ts": event.begin * 1e6,
                "dur": (event.end - event.begin) * 1e6,
                "args": {"step": event.step},
            }
            for event in own
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(path: Path, ranks: Sequence[Iterable[Event]], labels: Sequence[str]) -> None:
    """Write the trace atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(trace_document(ranks, labels)), encoding="utf-8")
    partial.replace(path)


@dataclass(frozen=True)
class StepTimes:
    """The times of a rank's step: ``seconds`` from its first to its last span, of which it computed ``busy``."""

    step: int
    seconds: float
    busy: float

    @classmethod
    def of(cls, step: int, spans: Sequence[Span]) -> StepTimes:
        """Sum the spans of a step."""
        begin, end = min(span.begin for span in spans), max(span.end for span in spans)
        return cls(step, end - begin, sum(span.end - span.begin for span in spans if span.kind in _BUSY))


class Scalars:
    """A writer of TensorBoard scalars about the pipeline, on rank 0: step time, busy time and bubble."""

    def __init__(self, directory: str | Path, plan: Plan) -> None:
        """Open a writer; ``directory`` is the argument of TensorBoard's ``--logdir``."""
        import tensorflow as tf
        from tensorflow.compat.v1 import SummaryMetadata

        self._write = tf.summary.write
        # The format of tf.summary.scalar, which itself requires the package tensorboard.
        self._metadata = SummaryMetadata()
        self._metadata.plugin_data.plugin_name = "scalars"
        self._metadata.data_class = 1  # DATA_CLASS_SCALAR
        self._writer = tf.summary.create_file_writer(str(directory))
        self._plan, self._bubble = plan, plan.bubble

    def write(self, ranks: Iterable[StepTimes]) -> None:
        """Write one step of all ranks, in the order of the world."""
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
                self._scalar(f"pipeline/bubble/rank_{rank}/predicted", self._bubble[partition])

    def _scalar(self, name: str, value: float) -> None:
        self._write(name, np.float32(value), metadata=self._metadata)

    def close(self) -> None:
        """Flush and close the writer."""
        self._writer.close()
