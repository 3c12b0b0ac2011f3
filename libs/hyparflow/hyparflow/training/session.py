"""A model on these ranks: its plan, its engine, and the part of its state that each rank saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from hyparflow.checkpoints.directory import Checkpoint
from hyparflow.checkpoints.export import check_model, save_whole, whole
from hyparflow.checkpoints.restore import is_of_optimizer, of_optimizer, restore
from hyparflow.checkpoints.saver import Key, shares
from hyparflow.engine.engine import Engine, Options
from hyparflow.errors import CheckpointError, RequestError
from hyparflow.graph.initialise import give_memory_back
from hyparflow.training.agreement import agreed, gather_all, together
from hyparflow.training.dispatch import SESSION, plain_keras
from hyparflow.training.feed import Share, totals_of
from hyparflow.training.layout import Array

if TYPE_CHECKING:
    import keras

    from hyparflow.planning.plan import Plan


class Session:
    """A model under a plan. Creating it is collective, and so are its methods unless stated otherwise."""

    def __init__(self, model: keras.Model, plan: Plan, comm: Any, options: Options) -> None:
        from hyparflow.backends.tensorflow.totals import Totals

        self.model, self.plan, self.comm = model, plan, comm
        self._inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        self._global_clipnorm = self._inner.global_clipnorm  # the engine clips by it instead of Keras
        self.engine = Engine(model, plan, comm, options, lambda action: together(comm, action))
        self.seat = self.engine.world.seat
        self.totals = Totals(model, self.engine.reads.outputs)
        self.share = Share(
            self.seat.replica, plan.replicas, plan.micro_batches, self.engine.reads, partial(totals_of, self.totals)
        )
        of_model = {name for program in self.engine.programs.values() for name in program.variables}
        every = self.engine.variables
        own = {name: value for name, value in every.items() if name in of_model}
        slots = [value for name, value in every.items() if name not in of_model]
        self.variables: Mapping[str, Any] = own | of_optimizer(model.optimizer, slots)
        self._own_keys = self._keys(own)
        self._compiled = (model.optimizer, model._compile_loss)
        self._made_of = _made_of(model)
        self.meter: tuple[Any, Any] | None = None  # kinds of targets, and the Meter for them
        self.home: Any = None  # the `Sessions` object that created it
        self._rest: dict[str, Array] | None = None  # the values that a gathered model lacks to be saved

    @property
    def keys(self) -> list[Key]:
        """The values that this rank writes into checkpoints; not collective."""
        return self._own_keys

    def serves(self, model: keras.Model) -> bool:
        """Return whether this session matches the model as it is compiled now, with its current layers and weights."""
        now = (model.optimizer, model._compile_loss)
        compiled = self.model is model and all(a is b for a, b in zip(self._compiled, now, strict=True))
        return compiled and self._made_of.keys() == _made_of(model).keys()

    @property
    def optimizer(self) -> Any:
        """The model's optimizer, as it was compiled."""
        return self._compiled[0]

    @property
    def is_whole(self) -> bool:
        """True if each rank can read and save everything; the same on all ranks."""
        return self._rest is not None or not (self.plan.partitions > 1 or self._private)

    def release(self) -> None:
        """Drop the variables that other ranks train; reading them is an error until gathered. Not collective."""
        from hyparflow.graph.initialise import release

        self._rest = None
        own = {id(each) for each in self.variables.values()}
        release(each for each in self.model.variables if id(each) not in own)
        # Keras' compiled functions refer to the dropped variables.
        self.model.train_function = self.model.test_function = self.model.predict_function = None

    def replanned(self, batch_size: int) -> Plan | None:
        """Return the plan with the same stages for another batch size, None if it does not divide; not collective."""
        shares = self.plan.replicas * self.plan.micro_batches
        if batch_size % shares:
            return None
        return replace(self.plan, micro_batch_size=batch_size // shares)

    def restore(self, checkpoint: Checkpoint, batch_size: int, seed: int) -> None:
        """Load the state of a checkpoint, to continue with the same data; not collective.

        Args:
            checkpoint: The checkpoint.
            batch_size: Samples of an update.
            seed: Seed of the order of the data.

        Raises:
            CheckpointError: It belongs to another model, or its position refers to other data.
        """
        check_model(checkpoint, self.plan.fingerprint)
        begun = checkpoint.progress
        if (begun.batch_size, begun.seed) != (batch_size, seed):
            raise CheckpointError(
                f"{checkpoint.directory} was made with batches of {begun.batch_size} and seed {begun.seed}: "
                f"to continue within the data, use the same, not {batch_size} and {seed}"
            )
        restore(checkpoint, self.variables, self.seat.replica)
        self.engine.step = checkpoint.progress.step

    def check_equal(self) -> None:
        """Raise RequestError on all ranks if models were built differently, with different values of a variable.

        Moving statistics may differ once they have been trained: each replica has its own.
        """
        begun = self.engine.step > 0
        found = {
            name: crc32(np.asarray(each).tobytes())
            for name, each in self._built().items()
            if each.trainable or not begun
        }
        known: dict[str, tuple[int, int]] = {}
        for rank, digests in enumerate(gather_all(self.comm, found)):
            for name, digest in digests.items():
                first, expected = known.setdefault(name, (rank, digest))
                if digest != expected:
                    raise agreed(
                        RequestError(
                            f"{name} differs between rank {first} and rank {rank}: build the model inside "
                            "strategy.scope(), or after keras.utils.set_random_seed(...), so that all ranks start "
                            "with equal values"
                        )
                    )

    def values(self, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Array]:
        """Return the values of all ranks' variables by name, those of replica 0 if each replica has its own."""
        own = {
            name: np.asarray(self.variables[name])
            for name, replica in self._own_keys
            if replica in (None, 0) and wanted(name)
        }
        return {name: value for each in gather_all(self.comm, own) for name, value in each.items()}

    def optimizer_values(self) -> dict[str, Array]:
        """Return the values of the optimizer's variables of all ranks."""
        return self.values(is_of_optimizer)

    def weights(self) -> list[Array]:
        """Return the weights like the model's ``get_weights``; no rank keeps more than its part."""
        from hyparflow.graph.calls import variables_of

        names = {id(each): name for name, each in variables_of(self.model).items()}
        wanted = {names[id(each)] for each in self.model.weights}
        values = self.values(wanted.__contains__)
        return [values[names[id(each)]] for each in self.model.weights]

    def gather_rest(self) -> None:
        """Keep the values that are needed to save the gathered model on any rank: optimizer, replica 0's statistics."""
        private = {name for name, replica in self._own_keys if replica is not None}
        private = set().union(*gather_all(self.comm, private))
        self._rest = self.values(lambda name: is_of_optimizer(name) or name in private)

    def take(self, state: Mapping[str, Array]) -> None:
        """Set this rank's part of the optimizer to the values of the whole one; not collective.

        Raises:
            RequestError: It was built for other variables.
        """
        own = {name: each for name, each in self.variables.items() if is_of_optimizer(name)}
        if missing := sorted(set(own) - set(state)):
            raise RequestError(
                f"optimizer {self._inner.name!r} was built for other variables (it has no {missing[0]}): after a "
                "change of trainable, compile() the model with a new optimizer, as in Keras"
            )
        for name, variable in own.items():
            variable.assign(state[name])

    def load_weights(self, path: str | Path, **options: Any) -> None:
        """Load weights like the model's ``load_weights``; each rank gets its part of the optimizer's state."""
        values = self.values()

        def load() -> None:
            with plain_keras(self.model), whole(self.model, values):
                self.model.load_weights(path, **options)
                state = {name: np.asarray(each) for name, each in of_optimizer(self.model.optimizer).items()}
            self.take(state)

        together(self.comm, load)
        self._rest = None
        give_memory_back()

    def save(self, path: str | Path, *, weights_only: bool = False, **options: Any) -> None:
        """Write the whole model as Keras does: on rank 0, which collects it, or on each rank if it is whole."""
        if self.is_whole:
            self._write(self._built_values() | (self._rest or {}), path, weights_only, **options)
            return
        self._save_parts(path, weights_only, **options)
        give_memory_back()

    def _save_parts(self, path: str | Path, weights_only: bool, **options: Any) -> None:
        values = {name: np.asarray(self.variables[name]) for name, replica in self._own_keys if replica in (None, 0)}
        gathered = self.comm.gather(values, root=0)

        def write() -> None:
            if gathered is not None:
                merged = {name: value for each in gathered for name, value in each.items()}
                try:
                    self._write(merged, path, weights_only, **options)
                finally:
                    self.release()

        together(self.comm, write)

    def _write(self, values: Mapping[str, Array], path: str | Path, weights_only: bool, **options: Any) -> None:
        self._inner.global_clipnorm = self._global_clipnorm
        try:
            with plain_keras(self.model):
                trained_by = self.serves(self.model)  # otherwise it was compiled again, with a new optimizer
                save_whole(self.model, values, path, weights_only, optimizer=trained_by, **options)
        finally:
            self._inner.global_clipnorm = None

    def _built_values(self) -> dict[str, Array]:
        optimizer = of_optimizer(self.model.optimizer)
        return {name: np.asarray(each) for name, each in (*self._built().items(), *optimizer.items())}

    def finalize(self) -> None:
        """Finish a training in the optimizer: with ``use_ema``, the averages become the weights."""
        self._inner.finalize_variable_values(self._inner._trainable_variables)

    def close(self) -> None:
        """Free the resources of the engine."""
        self.engine.close()
        self._inner.global_clipnorm = self._global_clipnorm

    def _built(self) -> Mapping[str, Any]:
        """Return the model's variables that have a value on this rank."""
        from hyparflow.graph.calls import variables_of

        return {name: each for name, each in variables_of(self.model).items() if each._value is not None}

    def _keys(self, of_model: Mapping[str, Any]) -> list[Key]:
        """Return the values that this rank writes. Each replica has its own moving statistics, the rest is equal."""
        private = self.plan.replicas > 1
        owned = {
            name: (int(np.prod(each.shape)), private and name in of_model and not each.trainable)
            for name, each in self.variables.items()
        }
        every = gather_all(self.comm, owned)
        self._private = any(alone for each in every for _, alone in each.values())
        return shares(every, self.plan.partitions)[self.comm.rank]


def _made_of(model: keras.Model) -> dict[int, Any]:
    """Return a model's layers and weights by id; ``quantize``, ``enable_lora``, ``add`` and ``pop`` change them."""
    return {id(each): each for each in (*model._flatten_layers(include_self=False), *model.weights)}


def session_of(model: Any) -> Session | None:
    """Return the session that trains a model, or trained it last."""
    found: Session | None = vars(model).get(SESSION)
    return found
