"""What the steps of a training took, measured on every rank, beside what the plan predicted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hyparflow.engine.engine import Span, StepResult
from hyparflow.tracing import chrome
from hyparflow.tracing.chrome import Event
from hyparflow.tracing.scalars import Scalars, StepTimes

if TYPE_CHECKING:
    from hyparflow.training.session import Session

_LANES = {
    "forward": "compute",
    "backward": "compute",
    "wait": "messages",
    "finish": "messages",
    "allreduce": "allreduce",
    "update": "update",
}
#: Steps between two writings of scalars: each takes a message of every rank.
_FLUSH = 10


class Recorder:
    """Collects a training's spans. Collective: all ranks make it, show it every step, and close it."""

    def __init__(
        self, session: Session, trace: str | Path | None, steps: tuple[int, int], tensorboard: str | Path | None
    ) -> None:
        """``trace``: the file for the timeline of the steps ``steps`` (first, last); ``tensorboard``: a directory."""
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
            # The ranks' clocks count from anywhere: they leave the barrier within the time of a message of each other.
            session.comm.Barrier()
            self._origin = time.perf_counter()
        session.engine.options = replace(session.engine.options, trace=self.wanted)

    def step(self, number: int, result: StepResult) -> None:
        """Take in the spans of step ``number`` (from 1)."""
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
        """Write what is not written yet."""
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
        """What the plan says about this rank's part of the step, as if it began when the step did."""
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
        """The trace of all ranks, on rank 0; once."""
        path, self._trace = self._trace, None
        session, plan = self._session, self._session.plan
        label = f"rank {session.comm.rank}: partition {session.seat.partition} of replica {session.seat.replica}"
        gathered = session.comm.gather((self._events, label), root=0)
        if gathered is not None and path is not None:
            events, labels = zip(*gathered, strict=True)
            chrome.write(path, events, [f"{each} ({plan.schedule})" for each in labels])

    def _flush(self) -> None:
        gathered = self._session.comm.gather(self._times, root=0)
        self._times = []
        if self._scalars is not None:
            for times in zip(*gathered, strict=True):
                self._scalars.write(times)


def _name(span: Span) -> str:
    return span.kind if span.stage < 0 else f"{span.kind} {span.stage} [{span.micro_batch}]"
