"""The session of the model that is being trained: its plan, and what follows from it.

The plan of a training: made by rank 0 for all, and refined by what each rank sees of its own stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hyparflow.checkpoints.directory import Progress
from hyparflow.checkpoints.restore import of_optimizer, unbuild
from hyparflow.engine.engine import Options
from hyparflow.graph.initialise import give_memory_back, is_here
from hyparflow.planning.measure import Passes, Rehearsal, slowest
from hyparflow.planning.plan import Plan
from hyparflow.planning.planner import plan
from hyparflow.training import requests
from hyparflow.training.agreement import any_of, gather_all, together
from hyparflow.training.data import Source
from hyparflow.training.metrics import Meter
from hyparflow.training.model_io import gather
from hyparflow.training.session import Session, session_of

if TYPE_CHECKING:
    import keras

    from hyparflow.graph.types import Graph


class Sessions:
    """One session at a time, for what a strategy was asked. All ranks call the same methods in the same order."""

    def __init__(
        self,
        comm: Any,
        *,
        partitions: int,
        replicas: int,
        micro_batches: int | Literal["auto"],
        plan: Plan | None,
        request: dict[str, Any],
        options: Options,
    ) -> None:
        """``plan``: in place of ``request``, the further arguments of ``hyparflow.plan``."""
        self.comm = comm
        self.partitions, self.replicas = partitions, replicas
        self._micro_batches, self._plan = micro_batches, plan
        self._request, self._options = request, options
        self.current: Session | None = None

    @property
    def plan(self) -> Plan | None:
        """The one that is being used, or the one that was given."""
        return self._plan if self.current is None else self.current.plan

    def opened(self, model: keras.Model, batch_size: int, progress: Progress | None) -> Session:
        """The session of a model with this batch: the one that there is, the same stages, or a new plan."""
        held = session_of(model)
        plan, state = None, None
        if held is not None and self.has(model):
            if held.plan.batch_size == batch_size:
                self.current = held
                return held
            plan = held.replanned(batch_size)
        if plan is None:
            self._make_whole(model)
            state = self._state_of_optimizer(model)
            plan = self._planned(model, batch_size, progress)
        together(self.comm, lambda: requests.check_losses(model, plan))
        if held is not None:
            held.close()
        if state is not None:
            unbuild(model.optimizer)
        made = Session(model, plan, self.comm, self._options)
        if state is not None:
            together(self.comm, partial(made.take, state))
            del state
            give_memory_back()  # of the optimizer for all of the model
        elif held is not None:
            made.engine.step = held.engine.step
        made.home = self
        self.current = made
        return made

    def has(self, model: keras.Model) -> bool:
        """Whether there is a session of the model as it is compiled now."""
        held = session_of(model)
        return held is not None and held.home is self and held.serves(model)

    def _make_whole(self, model: keras.Model) -> None:
        """Give all ranks what was trained of a model, by this strategy or another, to be distributed again."""
        held = session_of(model)
        trained = held is not None and held.engine.step > 0
        if any_of(self.comm, trained or not all(is_here(each) for each in model.variables)):
            gather(model, self.comm, optimizer=False, equal=True)

    def _state_of_optimizer(self, model: keras.Model) -> Mapping[str, Any] | None:
        """What a model's optimizer has learned, here or in parts; None: nothing yet."""
        held = session_of(model)
        if held is not None and held.optimizer is model.optimizer:
            return held.optimizer_values()
        if not model.optimizer.built:
            return None
        return {name: np.asarray(each) for name, each in of_optimizer(model.optimizer).items()}

    def _planned(self, model: keras.Model, batch_size: int, progress: Progress | None) -> Plan:
        """The plan that was given, or one from this request; the same on all ranks."""
        micro_batches = self._micro_batches
        if micro_batches == "auto" and progress is not None and progress.micro_batches % self.replicas == 0:
            micro_batches = progress.micro_batches // self.replicas  # the same numbers as before the restart
        given = self._plan
        if given is not None:
            together(self.comm, lambda: requests.check_batch(given, batch_size))
            return Plan.from_json(self.comm.bcast(given.to_json()))
        return plan_together(
            self.comm,
            model,
            partitions=self.partitions,
            replicas=self.replicas,
            batch_size=batch_size,
            micro_batches=micro_batches,
            **self._request,
        )

    def least(self, batch_size: int) -> int:
        """A batch that can be shared out, for a model that is not trained: any will do, for smaller ones are filled."""
        if self._plan is not None:
            return self._plan.batch_size
        shares = self.replicas * (self.partitions if self._micro_batches == "auto" else self._micro_batches)
        return -(-batch_size // shares) * shares

    def meter(self, session: Session, given: Source) -> Meter:
        """The session's meter, a new one for targets of other shapes."""
        example = given.example
        kinds = [None if each is None else (each.dtype, each.shape[1:]) for each in example.targets]
        plan, seat = session.plan, session.seat

        def make() -> Meter:
            return Meter(
                session.model,
                example,
                self.comm,
                replica=seat.replica,
                counts=seat.partition == 0,
                replicas=plan.replicas,
                micro_batches=plan.micro_batches,
            )

        if session.meter is None or session.meter[0] != kinds:
            session.meter = kinds, together(self.comm, make)
        return session.meter[1]


def plan_together(comm: Any, model: Any, **request: Any) -> Plan:
    """``hyparflow.plan(model, **request)``, the same on all ranks; collective.

    Costs are measured on rank 0. For ``refinements`` every rank times its own stages, all at once, as they will run:
    ranks share caches and memory, and are as fast as each other's work lets them be.

    :param comm: mpi4py's communicator of ``partitions * replicas`` ranks.
    :raises HyparflowError: the same on all ranks, as `hyparflow.training.agreement.together` does.
    """

    def timed(model: Any, graph: Graph, unrefined: Plan) -> list[Passes]:
        together(comm, lambda: None)
        comm.bcast((unrefined.to_json(), False))
        return _rehearsed(comm, model, graph, unrefined)

    if comm.rank:
        return _followed(comm, model)
    made: Plan = together(comm, lambda: plan(model, timed=timed, **request))
    comm.bcast((made.to_json(), True))
    return made


def _followed(comm: Any, model: Any) -> Plan:
    """What the ranks other than 0 do: time what rank 0 asks for, until it has the plan."""
    from hyparflow.graph.calls import graph_of

    while True:
        together(comm, lambda: None)  # fails here where rank 0 does
        text, is_final = comm.bcast(None)
        told = Plan.from_json(text)
        if is_final:
            return told
        _rehearsed(comm, model, graph_of(model), told)


def _rehearsed(comm: Any, model: Any, graph: Graph, unrefined: Plan) -> list[Passes]:
    rehearsal = together(comm, lambda: Rehearsal(model, graph, unrefined, comm.rank % unrefined.partitions))
    return slowest(gather_all(comm, together(comm, rehearsal.seconds)))
