"""Sums over the ranks that own a variable: replicas, the two pipelines of GEMS, stages that share a layer.

The gradients of a stage are complete after its last backward pass of the step. The allreduce of each of its buffers
then starts at once, in place, while the rank computes other stages. Collectives on one communicator must be called in
the same order by all ranks. All owners therefore start their common sums in the order of the last backward pass that
each sum waits for, on whichever rank that is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.backends import Buffer, Reach, Slot
from hyparflow.engine.world import wait

if TYPE_CHECKING:
    from hyparflow.engine.world import World
    from hyparflow.graph.types import Graph
    from hyparflow.planning.plan import Plan
    from hyparflow.schedules import Schedule


@dataclass(frozen=True)
class Run:
    """Consecutive slots of a buffer of one stage, whose variables are used by the same stages.

    A variable that several stages use is a run of its own, because its neighbours differ from stage to stage.
    """

    stage: int
    stages: tuple[int, ...]
    buffer: int
    slots: tuple[Slot, ...]

    @property
    def begin(self) -> int:
        """Its first element in the buffer."""
        return self.slots[0].offset

    @property
    def end(self) -> int:
        """The element after its last one."""
        return self.slots[-1].offset + self.slots[-1].size


@dataclass(frozen=True)
class Ownership:
    """The ownership of variables: variable -> the stages that use it, and stage -> its partitions, both ascending."""

    users: Mapping[str, tuple[int, ...]]
    owners: Mapping[int, tuple[int, ...]]
    schedule: Schedule

    @classmethod
    def of(cls, graph: Graph, plan: Plan) -> Ownership:
        """Return the ownership in a plan."""
        users: dict[str, tuple[int, ...]] = {}
        for stage in plan.stages:
            for name in {name for node in stage.nodes for name in graph.nodes[node].variables}:
                users[name] = (*users.get(name, ()), stage.index)
        owners = {
            stage.index: tuple({plan.owner(stage.index, pipeline) for pipeline in range(plan.pipelines)})
            for stage in plan.stages
        }
        return cls(users, owners, plan.actions)

    def first(self, variable: str) -> int:
        """Return the partition that counts a variable that must be counted once."""
        return min(owner for stage in self.users[variable] for owner in self.owners[stage])


def runs_of(stage: int, buffers: Sequence[Buffer], stages: Mapping[str, tuple[int, ...]]) -> Iterator[Run]:
    """Yield the runs of a stage's buffers.

    Args:
        stage: The stage.
        buffers: Its buffers.
        stages: Variable -> the stages that use it, ascending.
    """
    for index, buffer in enumerate(buffers):

        def kind(slot: Slot) -> tuple[Any, ...]:
            users = stages[slot.variable]
            return users, slot.variable if len(users) > 1 else ""

        for (users, _), slots in groupby(buffer.slots, kind):
            yield Run(stage, users, index, tuple(slots))


def variables_with_gradients(reaches: Mapping[int, Mapping[int | None, Reach]]) -> frozenset[str]:
    """Return the names of the variables that a loss depends on; the others have no gradient (None in one process).

    ``reaches``: the result of ``StageProgram.reaches`` for each stage. A tensor is received by stages after the one
    that sends it.
    """
    tensors: set[int | None] = {None}  # the losses, then the tensors that get a gradient
    variables: set[str] = set()
    for stage in sorted(reaches, reverse=True):
        for source, reach in reaches[stage].items():
            if source in tensors:
                tensors |= reach.received
                variables |= reach.variables
    return frozenset(variables)


def last_backward(schedule: Schedule) -> dict[int, int]:
    """Return stage -> position of its last backward pass among the actions of the partition (the later one of two)."""
    last: dict[int, int] = {}
    for actions in schedule:
        for position, action in enumerate(actions):
            last[action.stage] = max(last.get(action.stage, 0), position)
    return last


@dataclass
class _Sum:
    """One allreduce."""

    comm: Any  # None: no other rank has the variables
    run: Run
    own_stages: tuple[int, ...]  # the stages of the run that are on this rank
    request: Any = None
    view: np.ndarray | None = None
    wide: np.ndarray | None = None  # if 16-bit floats are summed in 32 bits
    began: float = 0.0


class Sums:
    """The sums of one kind of buffers (gradients, statistics) of one rank's stages, over their owners."""

    def __init__(
        self,
        world: World,
        programs: Mapping[int, Any],
        buffers: Callable[[Any], Sequence[Buffer]],
        ownership: Ownership,
        *,
        all_replicas: bool,
    ) -> None:
        """Create the communicators of the owners; collective.

        Args:
            world: The communicators of this rank.
            programs: Stage -> program of this rank.
            buffers: A function from a program to its buffers, which are divided equally on all owners.
            ownership: The stages of each variable and the owners of each stage.
            all_replicas: Sum over all replicas, not only within this one.
        """
        self._programs = programs
        self._buffers = buffers
        replicas = world.seat.replicas * world.seat.spatial if all_replicas else 1
        found = []
        for stage, program in programs.items():
            for run in runs_of(stage, buffers(program), ownership.users):
                own = tuple(each for each in run.stages if each in programs)
                if own[0] == stage:
                    partitions = tuple(sorted({owner for each in run.stages for owner in ownership.owners[each]}))
                    found.append((run, own, partitions))
        shared = sorted({partitions for _, _, partitions in found if len(partitions) * replicas > 1})
        comms = {partitions: world.owners(partitions, all_replicas=all_replicas) for partitions in shared}
        last = last_backward(ownership.schedule)

        def turn(sum_: _Sum) -> tuple[Any, ...]:
            run = sum_.run
            return (
                max(last[stage] for stage in run.stages),
                run.stages,
                run.buffer if len(run.stages) == 1 else 0,
                (run.slots[0].variable if len(run.stages) > 1 else run.begin),
            )

        sums = [_Sum(comms.get(partitions), run, own) for run, own, partitions in found]
        self._sums = sorted((each for each in sums if each.comm is not None or len(each.own_stages) > 1), key=turn)
        self._ready: set[int] = set()
        self._started = 0
        self.spans: list[tuple[float, float]] = []

    def begin(self) -> None:
        """Start a new step."""
        self._ready.clear()
        self._started = 0
        self.spans.clear()

    def ready(self, stage: int) -> None:
        """Note that a stage's buffers are complete, and start every sum whose turn it is."""
        self._ready.add(stage)
        while self._started < len(self._sums) and self._ready.issuperset(self._sums[self._started].own_stages):
            self._start(self._sums[self._started])
            self._started += 1

    def _start(self, sum_: _Sum) -> None:
        from mpi4py import MPI

        run = sum_.run
        view = self._buffers(self._programs[run.stage])[run.buffer].array[run.begin : run.end]
        for stage in sum_.own_stages[1:]:  # a shared layer has calls on several stages of this rank
            view += self._slot(stage, run.slots[0].variable)
        if sum_.comm is None:
            return
        narrow = view.dtype.name not in ("float32", "float64")
        sum_.view, sum_.wide = view, view.astype(np.float32) if narrow else view
        sum_.began = time.perf_counter()
        sum_.request = sum_.comm.Iallreduce(MPI.IN_PLACE, sum_.wide, MPI.SUM)

    def _slot(self, stage: int, variable: str) -> np.ndarray:
        for buffer in self._buffers(self._programs[stage]):
            for slot in buffer.slots:
                if slot.variable == variable:
                    return buffer.array[slot.offset : slot.offset + slot.size]
        raise KeyError(variable)

    def progress(self) -> None:
        """Advance the sums that have been started."""
        for sum_ in self._sums[: self._started]:
            if sum_.request is not None and sum_.request.Test():
                self._done(sum_)

    def finish(self) -> None:
        """Wait for all sums; they are then in the buffers of the first of this rank's stages that uses a variable."""
        assert self._started == len(self._sums), "a stage's buffers were never complete"
        for sum_ in self._sums:
            if sum_.request is not None:
                wait(sum_.request)
                self._done(sum_)

    def _done(self, sum_: _Sum) -> None:
        assert sum_.view is not None
        assert sum_.wide is not None
        if sum_.wide is not sum_.view:
            sum_.view[...] = sum_.wide
        # If a view were kept, the framework would copy the buffer before it writes to it.
        sum_.request = sum_.wide = sum_.view = None
        self.spans.append((sum_.began, time.perf_counter()))
