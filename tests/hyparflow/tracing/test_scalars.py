"""A step's times from its spans."""

from __future__ import annotations

from hyparflow.engine.runner import Span
from hyparflow.tracing.scalars import StepTimes


def test_waiting_is_part_of_the_step_and_not_of_the_busy_time() -> None:
    spans = [Span("forward", 1.0, 2.0, 0, 0), Span("wait", 2.0, 4.5, 0, 0), Span("update", 4.5, 5.0)]

    assert StepTimes.of(7, spans) == StepTimes(7, 4.0, 1.5)
