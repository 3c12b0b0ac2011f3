"""One rank's part of a training, evaluation or prediction."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.backends import Buffer, Place, Portion, ProgramOptions, Slot, SpatialPart, Target
from hyparflow.engine.batches import Batch, Counts, Options, Reads, StepResult
from hyparflow.engine.gradients import Ownership, Sums, variables_with_gradients
from hyparflow.engine.messages import Exchange, HostMemory, host_dtype, links_of
from hyparflow.engine.runner import Feed, Findings, Runner, Span
from hyparflow.engine.update import Update
from hyparflow.engine.world import World, check_threads, wait
from hyparflow.errors import PlanError
from hyparflow.graph.spatial import rows_of

if TYPE_CHECKING:
    import keras
    from mpi4py import MPI

    from hyparflow.planning.plan import Plan

__all__ = ["Batch", "Counts", "Engine", "Options", "Reads", "Span", "StepResult"]


class Engine:
    """One rank's part of a training.

    All ranks call the same methods in the same order: each of them is collective over ``world``.
    """

    def __init__(
        self,
        model: keras.Model,
        plan: Plan,
        world: MPI.Comm,
        options: Options | None = None,
        agree: Callable[[Callable[[], Any]], Any] = lambda action: action(),
    ) -> None:
        """Build this rank's programs and optimizer; collective.

        Args:
            model: A compiled model, the same on every rank. Deferred variables of its own stages are initialised here.
            plan: The plan for this model.
            world: mpi4py's communicator of the ranks of the plan.
            options: How to compute steps (default: ``Options()``).
            agree: A function that runs an action that can fail on some ranks only, such that all ranks raise the same
                error.

        Raises:
            PlanError: The plan belongs to another model.
            WorldError: There are too few or too many ranks, or MPI refuses calls from several threads.
            UnsupportedModel: The optimizer has an option that is not supported (``gradient_accumulation_steps``).
        """
        from hyparflow.backends.tensorflow import build
        from hyparflow.graph.calls import calls_of
        from hyparflow.graph.spatial import divide

        self.plan = plan
        self.options = options or Options()
        calls = calls_of(model)

        def check() -> None:
            if calls.graph.fingerprint != plan.fingerprint:
                raise PlanError(
                    f"the plan belongs to another model than {model.name}: make a new plan. If a rank also builds "
                    "other models, name inputs and layers, because Keras numbers default names within a process"
                )

            if plan.spatial > 1:
                check_threads()

        agree(check)
        self.world = World(world, plan.partitions, plan.replicas, plan.pipelines, plan.spatial)
        self._division = divide(calls, plan.spatial) if plan.spatial > 1 else None
        self._shapes = [calls.graph.tensors[index].shape for index in calls.graph.inputs]
        self.graph = calls.graph
        part = None
        if self._division is not None:
            self.graph = self._division.local(calls.graph, self.world.seat.part)
            forward, backward = self.world.parts
            part = SpatialPart(self._division, self.world.seat.part, forward, backward, wait)
        partition = self.world.seat.partition
        actions = plan.actions
        how = ProgramOptions(
            self.options.batch_norm,
            self.options.bucket_bytes,
            device_messages=self.options.messages is not None,
            spatial=part,
        )
        mine = sorted({action.stage for action in actions[partition]})
        self._agree = agree
        self.programs: dict[int, Any] = agree(
            lambda: {index: build(model, self.graph, plan.stages, index, how) for index in mine}
        )
        links = links_of(plan, self.graph)
        exchange = Exchange(
            links,
            actions[partition],
            partition=partition,
            partitions=plan.partitions,
            forward=self.world.forward,
            backward=self.world.backward,
            memory=self.options.messages or HostMemory(),
        )
        self._runner = Runner(self.programs, exchange, actions[partition])
        self._exchange = exchange
        ownership = Ownership.of(self.graph, plan)
        alike = self.options.batch_norm != "replica"
        self._sums = Sums(self.world, self.programs, lambda p: p.gradients(), ownership, all_replicas=True)
        self._statistics = Sums(self.world, self.programs, lambda p: p.statistics(), ownership, all_replicas=alike)
        # The sum of a variable that several of this rank's stages use is on the first of them.
        self._home = {name: stage for stage in sorted(self.programs, reverse=True) for name in self._names(stage)}
        trainable = {name: self.programs[stage].variables[name] for name, stage in sorted(self._home.items())}
        counted = [name for name in trainable if ownership.first(name) == partition]
        self._update = Update(model.optimizer, trainable, counted, self.world.replica)
        self.step = 0
        self._prepared: set[bool] = set()  # for training, for testing

    def _names(self, stage: int) -> tuple[str, ...]:
        trainable: tuple[str, ...] = self.programs[stage].trainable
        return trainable

    @property
    def reads(self) -> Reads:
        """The part of every batch that this rank reads."""
        received = {tensor for program in self.programs.values() for tensor in program.stage.receives}
        made = {tensor for program in self.programs.values() for tensor in program.stage.outputs}
        return Reads(
            tuple(index for index, tensor in enumerate(self.graph.inputs) if tensor in received),
            tuple(index for index, tensor in enumerate(self.graph.outputs) if tensor in made),
        )

    @property
    def variables(self) -> Mapping[str, keras.Variable]:
        """Name -> variable, for this rank's variables: the model's (``variables_of``), then the optimizer's (path).

        A variable that several ranks of a replica own (GEMS, shared layers) is equal on all of them, and on all
        replicas, except for moving statistics with ``batch_norm="replica"``.
        """
        own = {name: value for program in self.programs.values() for name, value in program.variables.items()}
        return own | dict(self._update.variables)

    def train_step(self, batch: Batch) -> StepResult:
        """Run forward and backward of all micro-batches, sum the gradients, and update the variables once."""
        for program in self.programs.values():
            program.start_step(self._update.loss_scale)
        self._sums.begin()
        self._statistics.begin()
        feed = self._feed(batch)
        if True not in self._prepared:
            self._agree(lambda: self._prepare(feed, training=True))
            trained = self._with_gradients()
            self._agree(lambda: self._update.leave_alone(frozenset(self._home) - trained))
        found = self._runner.train(feed, self._sums, self._complete)
        begin = time.perf_counter()
        self._exchange.finish()
        self._sums.finish()
        self._statistics.finish()
        summed = time.perf_counter()
        updated, norm = self._update(*self._gradients())
        for program in self.programs.values():
            program.finish_step(self._place(0))
        self.step += 1
        found.spans += [Span("finish", begin, summed), Span("update", summed, time.perf_counter())]
        found.spans += [Span("allreduce", *times) for times in self._sums.spans]
        return self._result(found, updated=updated, norm=norm)

    def test_step(self, batch: Batch) -> StepResult:
        """Run forward in inference mode, and return this rank's losses and outputs."""
        feed = self._feed(batch)
        if False not in self._prepared:
            self._agree(lambda: self._prepare(feed, training=False))
        found = self._runner.test(feed)
        self._exchange.finish()
        return self._result(found)

    def predict_step(self, batch: Batch) -> Mapping[int, Mapping[int, np.ndarray[Any, Any]]]:
        """Run forward in inference mode; return output of the model -> micro-batch -> predictions of this rank."""
        return self.test_step(Batch(batch.inputs, counts=batch.counts)).outputs

    def close(self) -> None:
        """Free the communicators; collective."""
        self.world.close()

    def _prepare(self, feed: Feed, *, training: bool) -> None:
        """Compile on all ranks at once; otherwise each would start when it gets its first micro-batch."""
        for stage, program in self.programs.items():
            received = {tensor: self.graph.tensors[tensor] for tensor in program.stage.receives}
            zeros = {index: np.zeros((feed.rows, *t.shape), host_dtype(t.dtype)) for index, t in received.items()}
            given = zeros | dict(feed.inputs(stage, 0))
            program.prepare(feed.place(0), given, feed.targets(stage, 0), training)
        self._prepared.add(training)

    def _with_gradients(self) -> frozenset[str]:
        """Return the variables that a loss depends on; collective over the replica."""
        wait(self.world.replica.Ibarrier())
        own = {stage: program.reaches() for stage, program in self.programs.items()}
        every = self.world.replica.allgather(own)
        return variables_with_gradients({stage: reach for each in every for stage, reach in each.items()})

    def _complete(self, stage: int) -> None:
        self._sums.ready(stage)
        self._statistics.ready(stage)

    def _gradients(self) -> tuple[list[Buffer], dict[str, tuple[int, Slot]]]:
        """Return all buffers of this rank, and the position of each variable's sum."""
        buffers: list[Buffer] = []
        places: dict[str, tuple[int, Slot]] = {}
        for stage, program in self.programs.items():
            for buffer in program.gradients():
                for slot in buffer.slots:
                    if self._home[slot.variable] == stage:
                        places[slot.variable] = (len(buffers), slot)
                buffers.append(buffer)
        return buffers, places

    def _place(self, micro_batch: int, counts: Counts | None = None) -> Place:
        seat, plan = self.world.seat, self.plan
        portion = None
        if counts is not None:
            shares = plan.replicas * plan.micro_batches
            portion = Portion(
                rows=min(max(counts.rows - micro_batch * counts.size, 0), counts.size),
                samples=counts.samples,
                parts=shares * counts.steps,
                filled=counts.samples != shares * counts.steps * counts.size,
                totals=counts.totals,
            )
        return Place(self.step, seat.replica, micro_batch, plan.replicas, plan.micro_batches, portion, plan.spatial)

    def _feed(self, batch: Batch) -> Feed:
        """Return the micro-batches of a batch; raise DataError if it does not fit."""
        size = self.plan.micro_batch_size if batch.counts is None else batch.counts.size
        batch.check(self.reads, size * self.plan.micro_batches)

        def inputs(stage: int, micro_batch: int) -> dict[int, Any]:
            received = self.programs[stage].stage.receives
            return {
                tensor: self._own(index, _rows(batch.inputs[index], micro_batch, size))
                for index, tensor in enumerate(self.graph.inputs)
                if tensor in received
            }

        def targets(stage: int, micro_batch: int) -> dict[int, Target] | None:
            made = self.programs[stage].stage.outputs
            found = {
                index: Target(_rows(value, micro_batch, size), _rows(weight, micro_batch, size))
                for index, (tensor, value, weight) in enumerate(self._compared(batch))
                if tensor in made and value is not None
            }
            return found if batch.targets else None

        return Feed(size, lambda micro_batch: self._place(micro_batch, batch.counts), inputs, targets)

    def _own(self, index: int, images: Any) -> Any:
        """Return this rank's part of an input of the model."""
        if self._division is None or self.graph.inputs[index] not in self._division.tensors:
            return images
        rows = rows_of(self._shapes[index][0], self.plan.spatial, self.world.seat.part)
        return np.ascontiguousarray(images[:, rows.start : rows.stop])

    def _compared(self, batch: Batch) -> list[tuple[int, Any, Any]]:
        """Return each output's tensor, target and sample weight, None if absent."""
        count = len(self.graph.outputs)
        targets = (*batch.targets, *[None] * count)
        weights = (*batch.sample_weights, *[None] * count)
        return list(zip(self.graph.outputs, targets[:count], weights[:count], strict=True))

    def _result(self, found: Findings, *, updated: bool = False, norm: float | None = None) -> StepResult:
        outputs = {
            index: found.outputs[tensor] for index, tensor in enumerate(self.graph.outputs) if tensor in found.outputs
        }
        beside = {
            index: found.beside[tensor] for index, tensor in enumerate(self.graph.outputs) if tensor in found.beside
        }
        loss = sum(found.totals.values()) / (self.plan.micro_batches * self.plan.spatial)
        spans = found.spans if self.options.trace else ()
        return StepResult(outputs, beside, found.losses, loss, updated, norm, spans)


def _rows(array: Any, micro_batch: int, size: int) -> Any:
    return None if array is None else array[micro_batch * size : (micro_batch + 1) * size]
