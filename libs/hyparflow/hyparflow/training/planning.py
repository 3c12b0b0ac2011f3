"""The plan of a training: made by rank 0 for all, and refined by what each rank sees of its own stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hyparflow.planning.plan import Plan
from hyparflow.planning.planner import plan
from hyparflow.planning.rehearsal import Passes, Rehearsal, slowest
from hyparflow.training.agreement import together
from hyparflow.training.collectives import gather_all

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph


def planned(comm: Any, model: Any, **request: Any) -> Plan:
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
    from hyparflow.graph.from_keras import graph_of

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
