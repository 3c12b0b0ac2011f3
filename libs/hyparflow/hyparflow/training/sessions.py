"""The session of the model that is being trained, and its plan.

Rank 0 creates the plan for all ranks, and each rank refines it with the times of its own stages.
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
    """The sessions of a strategy, one at a time. All ranks call the same methods in the same order."""

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
        """Prepare sessions.

        Args:
            comm: mpi4py's communicator of all ranks.
            partitions: Ranks that share one model.
            replicas: Copies of the model.
            micro_batches: Micro-batches of a replica's step, or "auto".
            plan: A plan to use instead of ``request``, or None.
            request: Further arguments of ``hyparflow.plan``.
            options: Options of the engine.
        """
        self.comm = comm
        self.partitions, self.replicas = partitions, replicas
        self._micro_batches, self._plan = micro_batches, plan
        self._request, self._options = request, options
        self.current: Session | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan in use, or the given one."""
        return self._plan if self.current is None else self.current.plan

    def opened(self, model: keras.Model, batch_size: int, progress: Progress | None) -> Session:
        """Return the session of a model with this batch size; a new one keeps the current stages if possible.

        Args:
            model: A compiled model.
            batch_size: Samples of an update.
            progress: The progress of a checkpoint, or None.
        """
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
            give_memory_back()  # frees the optimizer of the whole model
        elif held is not None:
            made.engine.step = held.engine.step
        made.home = self
        self.current = made
        return made

    def has(self, model: keras.Model) -> bool:
        """Return whether there is a session of the model as it is compiled now."""
        held = session_of(model)
        return held is not None and held.home is self and held.serves(model)

    def _make_whole(self, model: keras.Model) -> None:
        """Give all ranks the trained parts of a model, by this strategy or another, before it is distributed again."""
        held = session_of(model)
        trained = held is not None and held.engine.step > 0
        if any_of(self.comm, trained or not all(is_here(each) for each in model.variables)):
            gather(model, self.comm, optimizer=False, equal=True)

    def _state_of_optimizer(self, model: keras.Model) -> Mapping[str, Any] | None:
        """Return the state of a model's optimizer, also from parts on other ranks; None if it has none yet."""
        held = session_of(model)
        if held is not None and held.optimizer is model.optimizer:
            return held.optimizer_values()
        if not model.optimizer.built:
            return None
        return {name: np.asarray(each) for name, each in of_optimizer(model.optimizer).items()}

    def _planned(self, model: keras.Model, batch_size: int, progress: Progress | None) -> Plan:
        """Return the given plan, or one for this request; the same on all ranks."""
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
        """Return a batch size that can be shared, for a model that is not trained; smaller batches are padded."""
        if self._plan is not None:
            return self._plan.batch_size
        shares = self.replicas * (self.partitions if self._micro_batches == "auto" else self._micro_batches)
        return -(-batch_size // shares) * shares

    def meter(self, session: Session, given: Source) -> Meter:
        """Return the session's meter, a new one if the shapes of targets have changed."""
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
    """Create the plan ``hyparflow.plan(model, **request)``, the same on all ranks; collective.

    Costs are measured on rank 0. For ``refinements``, every rank times its own stages, all at once as in a training,
    because ranks share caches and memory and so influence each other.

    Args:
        comm: mpi4py's communicator of ``partitions * replicas`` ranks.
        model: The Keras model.
        request: The arguments of ``hyparflow.plan``.

    Raises:
        HyparflowError: The same on all ranks (see `hyparflow.training.agreement.together`).
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
    """Follow rank 0 on another rank: time its stages on request, and return the final plan."""
    from hyparflow.graph.calls import graph_of

    while True:
        together(comm, lambda: None)  # fails here if rank 0 fails
        text, is_final = comm.bcast(None)
        told = Plan.from_json(text)
        if is_final:
            return told
        _rehearsed(comm, model, graph_of(model), told)


def _rehearsed(comm: Any, model: Any, graph: Graph, unrefined: Plan) -> list[Passes]:
    rehearsal = together(comm, lambda: Rehearsal(model, graph, unrefined, comm.rank % unrefined.partitions))
    return slowest(gather_all(comm, together(comm, rehearsal.seconds)))
