"""All stages of a plan in one process, run in the order of a schedule, without MPI."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from hyparflow.backends import Outcome, Place, ProgramOptions, StageProgram, Target
from hyparflow.backends.tensorflow import build
from hyparflow.graph.types import Graph
from hyparflow.planning.stages import stages_of
from hyparflow.schedules import Action, schedule


class InProcess:
    """A replica whose partitions take turns: each action runs as soon as what it needs is there."""

    def __init__(
        self,
        model: Any,
        graph: Graph,
        assignment: Sequence[int],
        micro_batches: int,
        *,
        schedule_name: str = "1f1b",
        partitions: int | None = None,
        recompute: bool = False,
        replicas: int = 1,
        options: ProgramOptions | None = None,
    ) -> None:
        self.model, self.graph, self.micro_batches, self.replicas = model, graph, micro_batches, replicas
        self.stages = [_recomputing(stage, recompute) for stage in stages_of(graph, assignment)]
        partitions = partitions or len(self.stages)
        self.actions = schedule(schedule_name, partitions, micro_batches, len(self.stages) // partitions)
        self.programs: list[StageProgram] = [
            build(model, graph, self.stages, stage.index, options) for stage in self.stages
        ]
        self.losses: list[float] = []
        self.steps = 0

    def step(self, inputs: Sequence[Any], targets: Sequence[Any], weights: Sequence[Any] | None = None) -> None:
        """One step of training of this model over all replicas, which take turns."""
        for program in self.programs:
            program.start_step(float(self.model.optimizer.scale_loss(1.0)))
        for replica in range(self.replicas):
            self.losses += self._replica(replica, inputs, targets, weights)
        self._update()
        place = Place(self.steps, 0, 0, self.replicas, self.micro_batches)
        for program in self.programs:
            program.finish_step(place)
        self.steps += 1

    def _replica(self, replica: int, inputs: Sequence[Any], targets: Sequence[Any], weights: Any) -> list[float]:
        waiting = [list(actions) for actions in self.actions]
        size = len(inputs[0]) // (self.replicas * self.micro_batches)
        values: dict[tuple[int, int], Any] = {}
        gradients: dict[tuple[int, int], dict[int, Any]] = defaultdict(dict)
        losses = [0.0] * self.micro_batches
        while any(waiting):
            ran = False
            for actions in waiting:
                while actions and self._ready(actions[0], values, gradients):
                    ran = True
                    action = actions.pop(0)
                    place = Place(self.steps, replica, action.micro_batch, self.replicas, self.micro_batches)
                    row = (replica * self.micro_batches + action.micro_batch) * size
                    rows = slice(row, row + size)
                    if action.kind == "forward":
                        fed = {t: inputs[i][rows] for i, t in enumerate(self.graph.inputs)}
                        wanted = {
                            i: Target(y[rows], weights[i][rows] if weights else None) for i, y in enumerate(targets)
                        }
                        losses[action.micro_batch] += self._forward(action, place, fed, wanted, values).loss
                    else:
                        self._backward(action, place, gradients)
            if not ran:
                raise RuntimeError(f"nothing can run: {waiting}")
        return losses

    def _ready(self, action: Action, values: Mapping[Any, Any], gradients: Mapping[Any, Any]) -> bool:
        stage, m = self.stages[action.stage], action.micro_batch
        tensors = self.graph.tensors
        if action.kind == "forward":
            return all(tensors[t].producer is None or (t, m) in values for t in stage.receives)
        return all(
            set(consumers) <= set(gradients[t, m]) for t, consumers in stage.sends.items() if tensors[t].differentiable
        )

    def _forward(
        self,
        action: Action,
        place: Place,
        fed: Mapping[int, Any],
        targets: Mapping[int, Target],
        values: dict[Any, Any],
    ) -> Outcome:
        stage = self.stages[action.stage]
        inputs = {t: fed[t] if t in fed else values[t, action.micro_batch] for t in stage.receives}
        mine = {i: target for i, target in targets.items() if self.graph.outputs[i] in stage.outputs}
        outcome = self.programs[action.stage].forward(place, inputs, mine)
        values.update({(t, action.micro_batch): np.array(value) for t, value in outcome.sends.items()})
        return outcome

    def _backward(self, action: Action, place: Place, gradients: dict[Any, dict[int, Any]]) -> None:
        stage, m = self.stages[action.stage], action.micro_batch
        returned = {
            t: [gradients[t, m][stage] for stage in consumers]
            for t, consumers in stage.sends.items()
            if self.graph.tensors[t].differentiable
        }
        for t, gradient in self.programs[action.stage].backward(place, returned).items():
            gradients[t, m][action.stage] = np.array(gradient)

    def _update(self) -> None:
        """Sum shared variables over the stages that have them, and apply the optimizer to each once."""
        summed: dict[str, Any] = {}
        for program in self.programs:
            for buffer in program.gradients():
                for slot in buffer.slots:
                    part = buffer.array[slot.offset : slot.offset + slot.size].reshape(slot.shape)
                    summed[slot.variable] = summed[slot.variable] + part if slot.variable in summed else part
        variables = {name: v for program in self.programs for name, v in program.variables.items()}
        by_id = {id(variables[name]): tf.constant(gradient) for name, gradient in summed.items()}
        trainable = self.model.trainable_variables
        self.model.optimizer.apply([by_id[id(variable)] for variable in trainable], trainable)


def _recomputing(stage: Any, recompute: bool) -> Any:
    from dataclasses import replace

    return replace(stage, recompute=recompute)
