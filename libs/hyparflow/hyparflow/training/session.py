"""One model on these ranks: its plan, its engine, and what of its state each rank writes down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from hyparflow.checkpoints.directory import Checkpoint
from hyparflow.checkpoints.export import check_model, save_whole
from hyparflow.checkpoints.naming import of_optimizer
from hyparflow.checkpoints.restoring import restore
from hyparflow.checkpoints.saving import Key, shares
from hyparflow.engine.engine import Engine, Options
from hyparflow.errors import CheckpointError, RequestError
from hyparflow.training.agreement import agreed, together
from hyparflow.training.collectives import gather_all
from hyparflow.training.feed import Share

if TYPE_CHECKING:
    import keras

    from hyparflow.planning.plan import Plan


class Session:
    """A model under a plan. Making it is collective, and so are its methods where it is not said otherwise."""

    def __init__(self, model: keras.Model, plan: Plan, comm: Any, options: Options) -> None:
        self.model, self.plan, self.comm = model, plan, comm
        self._inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        self._global_clipnorm = self._inner.global_clipnorm  # the engine takes it over, and clips by it itself
        self.engine = Engine(model, plan, comm, options)
        self.seat = self.engine.world.seat
        self.share = Share(self.seat.replica, plan.replicas, self.engine.reads)
        of_model = {name for program in self.engine.programs.values() for name in program.variables}
        every = self.engine.variables
        own = {name: value for name, value in every.items() if name in of_model}
        slots = [value for name, value in every.items() if name not in of_model]
        self.variables: Mapping[str, Any] = own | of_optimizer(model.optimizer, slots)
        self._own_keys = self._keys(own)
        self.meter: tuple[Any, Any] | None = None  # kinds of targets, and the Meter for them

    @property
    def keys(self) -> list[Key]:
        """What this rank writes into checkpoints; not collective."""
        return self._own_keys

    def replanned(self, batch_size: int) -> Plan:
        """The same stages for another batch; not collective. Raises RequestError where it does not divide."""
        shares = self.plan.replicas * self.plan.micro_batches
        if batch_size % shares:
            raise RequestError(
                f"a batch of {batch_size} does not divide into the {shares} micro-batches of this model's plan"
            )
        return replace(self.plan, micro_batch_size=batch_size // shares)

    def restore(self, checkpoint: Checkpoint, batch_size: int, seed: int) -> None:
        """Take over the state of a checkpoint, to go on with the same data; not collective.

        :raises CheckpointError: if it is another model's, or its data position would mean other data.
        """
        check_model(checkpoint, self.plan.fingerprint)
        begun = checkpoint.progress
        if (begun.batch_size, begun.seed) != (batch_size, seed):
            raise CheckpointError(
                f"{checkpoint.directory} was made with batches of {begun.batch_size} and seed {begun.seed}: "
                f"to go on in the midst of the data takes the same, not {batch_size} and {seed}"
            )
        restore(checkpoint, self.variables, self.seat.replica)
        self.engine.step = checkpoint.progress.step

    def check_equal(self) -> None:
        """Raise RequestError on all ranks where two hold different values of one variable: models built differently."""
        found = {name: crc32(np.asarray(each).tobytes()) for name, each in self._built().items()}
        known: dict[str, tuple[int, int]] = {}
        for rank, digests in enumerate(gather_all(self.comm, found)):
            for name, digest in digests.items():
                first, expected = known.setdefault(name, (rank, digest))
                if digest != expected:
                    raise agreed(
                        RequestError(
                            f"{name} differs between rank {first} and rank {rank}: build the model inside "
                            "strategy.scope(), or after keras.utils.set_random_seed(...), so that all ranks begin alike"
                        )
                    )

    def save(self, path: str | Path, *, weights_only: bool = False, **options: Any) -> None:
        """Write the whole model as Keras does, on rank 0; it then holds all variables."""
        values = {name: np.asarray(self.variables[name]) for name, replica in self._own_keys if replica in (None, 0)}
        gathered = self.comm.gather(values, root=0)

        def write() -> None:
            if gathered is not None:
                merged = {name: value for each in gathered for name, value in each.items()}
                self._inner.global_clipnorm = self._global_clipnorm
                try:
                    save_whole(self.model, merged, path, weights_only, **options)
                finally:
                    self._inner.global_clipnorm = None

        together(self.comm, write)

    def finalize(self) -> None:
        """What an optimizer does when a training ends: with ``use_ema`` the averages become the weights."""
        self._inner.finalize_variable_values(self._inner._trainable_variables)

    def close(self) -> None:
        """Give back what the engine has taken."""
        self.engine.close()
        self._inner.global_clipnorm = self._global_clipnorm

    def _built(self) -> Mapping[str, Any]:
        """Those of the model's variables that have a value on this rank."""
        from hyparflow.graph.from_keras import variables_of

        return {name: each for name, each in variables_of(self.model).items() if each._value is not None}

    def _keys(self, of_model: Mapping[str, Any]) -> list[Key]:
        """Moving statistics are each replica's own; everything else is equal on all ranks that have it."""
        private = self.plan.replicas > 1
        owned = {
            name: (int(np.prod(each.shape)), private and name in of_model and not each.trainable)
            for name, each in self.variables.items()
        }
        return shares(gather_all(self.comm, owned), self.plan.partitions)[self.comm.rank]
