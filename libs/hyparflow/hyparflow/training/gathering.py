"""The whole model on every rank, from the parts that the ranks have trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.graph.initialise import initialise, is_here
from hyparflow.training.collectives import gather_all
from hyparflow.training.in_force import session_of

if TYPE_CHECKING:
    import keras


def gather(model: keras.Model, comm: Any = None, *, optimizer: bool = True, equal: bool = False) -> None:
    """Give every rank all variables of a model that was trained in partitions, and its optimizer's; collective.

    Plain Keras then reads and saves the trained model on any rank: ``model(x)``, ``get_weights``, ``save``. Each rank
    needs memory for all of it, until the strategy trains it again. Of moving statistics that each replica has for
    itself, replica 0's are taken.

    Args:
        model: the same on all ranks.
        optimizer: bring its slots too, for ``model.save()``; without, they stay on the ranks that train.
        equal: make moving statistics of replicas equal too, where ranks have trained their own.
        comm: mpi4py's communicator of the strategy; ``MPI.COMM_WORLD`` if None.
    """
    from mpi4py import MPI

    session = session_of(model)
    comm = (MPI.COMM_WORLD if session is None else session.comm) if comm is None else comm
    variables = model.variables
    holds = np.array(gather_all(comm, [is_here(each) for each in variables]))
    for index in np.flatnonzero(~holds.all(axis=0) | equal):
        variable, owner = variables[index], int(holds[:, index].argmax())
        value = comm.bcast(np.asarray(variable) if comm.rank == owner else None, root=owner)
        if equal or not is_here(variable):
            variable.assign(value)
    initialise(variables)
    if session is not None and optimizer:
        session.gather_rest()
