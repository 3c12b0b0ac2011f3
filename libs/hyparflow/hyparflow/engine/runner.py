"""Execution of one partition's actions: receive, compute, send, and advance messages and sums in between."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hyparflow.backends import Array, Place, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from hyparflow.engine.gradients import Sums
    from hyparflow.engine.messages import Exchange
    from hyparflow.schedules import Action


@dataclass(frozen=True)
class Span:
    """An activity of a rank from ``begin`` to ``end`` (``time.perf_counter`` seconds).

    ``kind``: forward, backward, wait (for the inputs of an action), allreduce (from start to completion), finish
    (remaining messages and allreduces) or update. ``stage``, ``micro_batch`` and ``pipeline`` are -1 if they do not
    apply.
    """

    kind: str
    begin: float
    end: float
    stage: int = -1
    micro_batch: int = -1
    pipeline: int = -1


@dataclass
class Findings:
    """The results of the actions, by output of the model and micro-batch, and by micro-batch."""

    outputs: dict[int, dict[int, Array]] = field(default_factory=dict)  # tensor -> micro-batch -> predictions
    beside: dict[int, dict[int, Any]] = field(default_factory=dict)  # tensor -> micro-batch -> masks and logits
    losses: dict[int, dict[int, float]] = field(default_factory=dict)  # position of the output -> micro-batch -> loss
    totals: dict[int, float] = field(default_factory=dict)  # micro-batch -> sum of the losses of this rank's stages
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class Feed:
    """The source of a micro-batch's data; each micro-batch has ``rows`` rows."""

    rows: int
    place: Callable[[int], Place]
    inputs: Callable[[int, int], Mapping[int, Array]]  # stage, micro-batch -> the model's inputs that the stage reads
    # Stage, micro-batch -> targets of the outputs of the stage.
    targets: Callable[[int, int], Mapping[int, Target] | None]


class Runner:
    """The execution of one partition's actions, step after step."""

    def __init__(self, programs: Mapping[int, Any], exchange: Exchange, actions: tuple[Action, ...]) -> None:
        """Prepare to run.

        Args:
            programs: Stage -> program.
            exchange: The messages of the partition.
            actions: The partition's actions in a training step.
        """
        self._programs = programs
        self._exchange = exchange
        self._actions = actions
        last = {action.stage: action for action in actions if action.kind == "backward"}
        self._last = set(last.values())
        self._fused = {stage for stage, program in programs.items() if not program.stage.sends}

    def train(self, feed: Feed, sums: Sums, complete: Callable[[int], None]) -> Findings:
        """Run all forward and backward passes of a step.

        A stage that sends nothing has its gradients after its forward pass: they are sent at once.

        Args:
            feed: The data of the step.
            sums: The sums of gradients, advanced between actions.
            complete: A function to call after the last backward pass of a stage, with the stage.
        """
        found = Findings()
        self._exchange.begin(training=True, rows=feed.rows)
        for action in self._actions:
            if action.kind == "forward":
                self._forward(action, feed, found, training=True)
                if action.stage in self._fused:
                    self._backward(action, feed, found)
            elif action.stage not in self._fused:
                self._backward(action, feed, found)
            if action in self._last:
                complete(action.stage)
            self._exchange.progress()
            sums.progress()
        return found

    def test(self, feed: Feed) -> Findings:
        """Run all forward passes in inference mode."""
        found = Findings()
        self._exchange.begin(training=False, rows=feed.rows)
        for action in self._actions:
            if action.kind == "forward":
                self._forward(action, feed, found, training=False)
                self._exchange.release(action)
                self._exchange.progress()
        return found

    def _forward(self, action: Action, feed: Feed, found: Findings, *, training: bool) -> None:
        stage, micro_batch = action.stage, action.micro_batch
        asked = time.perf_counter()
        tensors = {**feed.inputs(stage, micro_batch), **self._exchange.tensors(action)}
        begin = time.perf_counter()
        targets = feed.targets(stage, micro_batch)
        outcome = self._programs[stage].forward(feed.place(micro_batch), tensors, targets, training)
        self._exchange.send_tensors(action, outcome.sends)
        for tensor, value in outcome.outputs.items():
            found.outputs.setdefault(tensor, {})[micro_batch] = value
        for tensor, pair in outcome.beside.items():
            found.beside.setdefault(tensor, {})[micro_batch] = pair
        for position, loss in outcome.losses.items():
            found.losses.setdefault(position, {})[micro_batch] = loss
        found.totals[micro_batch] = found.totals.get(micro_batch, 0.0) + outcome.loss
        self._note(found, action, "forward", asked, begin)

    def _backward(self, action: Action, feed: Feed, found: Findings) -> None:
        asked = time.perf_counter()
        incoming = self._exchange.gradients(action)
        begin = time.perf_counter()
        gradients = self._programs[action.stage].backward(feed.place(action.micro_batch), incoming)
        self._exchange.send_gradients(action, gradients)
        self._exchange.release(action)
        self._note(found, action, "backward", asked, begin)

    @staticmethod
    def _note(found: Findings, action: Action, kind: str, asked: float, begin: float) -> None:
        where = (action.stage, action.micro_batch, action.pipeline)
        found.spans.append(Span("wait", asked, begin, *where))
        found.spans.append(Span(kind, begin, time.perf_counter(), *where))
