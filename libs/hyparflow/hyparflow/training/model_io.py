"""Access to the whole model: its weights, and the files that Keras writes of it.

The ranks have trained its parts; `gather` gives every rank the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.checkpoints.export import write
from hyparflow.errors import RequestError
from hyparflow.graph.initialise import initialise, is_here
from hyparflow.training import dispatch
from hyparflow.training.agreement import check_same, gather_all, together
from hyparflow.training.guard import guard
from hyparflow.training.session import session_of

if TYPE_CHECKING:
    import keras


class ModelIO:
    """Saving and reading of models that are distributed over the ranks of ``comm``."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.guard = guard(comm)

    @contextmanager
    def all_ranks(self, call: str) -> Iterator[None]:
        """Enter a method that all ranks call together; raise RequestError on all if they call different ones."""
        with self.guard.working(self.comm):
            check_same(self.comm, f"{call}()")
            yield

    def save(self, model: keras.Model, filepath: str | Path, **options: Any) -> None:
        """Write the whole model with its optimizer as ``.keras``, or its weights as ``.weights.h5``.

        All ranks call it, and rank 0 writes; after ``hyparflow.gather(model)``, any rank can call it alone.
        """
        weights_only = str(filepath).endswith(".weights.h5")
        session = session_of(model)
        if session is None:
            with dispatch.plain_keras(model):
                write(model, filepath, weights_only, **options)
        elif session.is_whole:
            session.save(filepath, weights_only=weights_only, **options)
        else:
            with self.all_ranks("save"):
                session.save(filepath, weights_only=weights_only, **options)

    def export(self, model: keras.Model, filepath: str | Path, *arguments: Any, **options: Any) -> None:
        """Export the whole model like ``keras.Model.export``. All ranks must call it; rank 0 writes the files.

        Afterwards, the model is whole on every rank, as after ``hyparflow.gather(model)``.
        """
        session = session_of(model)
        if session is None or session.is_whole:
            with dispatch.plain_keras(model):
                model.export(filepath, *arguments, **options)
            return
        with self.all_ranks("export"):
            gather(model, self.comm)

            def write() -> None:
                if self.comm.rank == 0:
                    with dispatch.plain_keras(model):
                        model.export(filepath, *arguments, **options)

            together(self.comm, write)

    def save_weights(self, model: keras.Model, filepath: str | Path, **options: Any) -> None:
        """Save weights like ``save``, for names that end in ``.weights.h5``."""
        if not str(filepath).endswith(".weights.h5"):
            raise RequestError(f"invalid file name {str(filepath)!r}: must end in .weights.h5, as in Keras")
        self.save(model, filepath, **options)

    def load_weights(self, model: keras.Model, filepath: str | Path, **options: Any) -> None:
        """Load weights like ``keras.Model.load_weights``, with a trained model's optimizer state; on all ranks."""
        session = session_of(model)
        if session is None or not session.serves(model):
            with dispatch.plain_keras(model):
                model.load_weights(filepath, **options)
        else:
            with self.all_ranks("load_weights"):
                session.load_weights(filepath, **options)

    def get_weights(self, model: keras.Model) -> list[Any]:
        """Return the weights like ``keras.Model.get_weights``; all ranks call it, unless the model is whole on each."""
        session = session_of(model)
        if session is None or session.is_whole:
            with dispatch.plain_keras(model):
                return model.get_weights()
        with self.all_ranks("get_weights"):
            return session.weights()

    def quantize(self, model: keras.Model, mode: Any = None, config: Any = None, **options: Any) -> None:
        """Quantize like ``keras.Model.quantize``, the whole model on every rank; all ranks call it."""
        session = session_of(model)
        if session is not None and not session.is_whole:
            with self.all_ranks("quantize"):
                gather(model, self.comm)
        with dispatch.plain_keras(model):
            model.quantize(mode, config, **options)


def gather(model: keras.Model, comm: Any = None, *, optimizer: bool = True, equal: bool = False) -> None:
    """Give every rank all variables of a model that was trained in partitions, and its optimizer's; collective.

    Any rank can then read and save the trained model in plain Keras: ``model(x)``, ``get_weights``, ``save``. Each rank
    needs memory for all of it, until the strategy trains it again. If each replica has its own moving statistics, those
    of replica 0 are used.

    Args:
        model: The same model on all ranks.
        comm: mpi4py's communicator of the strategy (default: ``MPI.COMM_WORLD``).
        optimizer: Gather its slots too, for ``model.save()``; otherwise they stay on the ranks that train.
        equal: Make moving statistics of replicas equal too, if ranks have trained their own.
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
