"""One model on these ranks: its plan, its engine, and what of its state each rank writes down."""

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
    """A model under a plan. Making it is collective, and so are its methods where it is not said otherwise."""

    def __init__(self, model: keras.Model, plan: Plan, comm: Any, options: Options) -> None:
        from hyparflow.backends.tensorflow.totals import Totals

        self.model, self.plan, self.comm = model, plan, comm
        self._inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        self._global_clipnorm = self._inner.global_clipnorm  # the engine takes it over, and clips by it itself
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
        self.home: Any = None  # whose session it is
        self._rest: dict[str, Array] | None = None  # what a gathered model lacks to be saved

    @property
    def keys(self) -> list[Key]:
        """What this rank writes into checkpoints; not collective."""
        return self._own_keys

    def serves(self, model: keras.Model) -> bool:
        """Whether this session is of the model as it is compiled now, with the layers and weights that it has now."""
        now = (model.optimizer, model._compile_loss)
        compiled = self.model is model and all(a is b for a, b in zip(self._compiled, now, strict=True))
        return compiled and self._made_of.keys() == _made_of(model).keys()

    @property
    def optimizer(self) -> Any:
        """The model's, as it was compiled."""
        return self._compiled[0]

    @property
    def is_whole(self) -> bool:
        """Whether each rank has all that there is to read and save; the same on all ranks."""
        return self._rest is not None or not (self.plan.partitions > 1 or self._private)

    def release(self) -> None:
        """Drop what other ranks train: to read that here is an error until it is gathered; not collective."""
        from hyparflow.graph.initialise import release

        self._rest = None
        own = {id(each) for each in self.variables.values()}
        release(each for each in self.model.variables if id(each) not in own)
        # Keras' compiled functions hold the variables that were dropped.
        self.model.train_function = self.model.test_function = self.model.predict_function = None

    def replanned(self, batch_size: int) -> Plan | None:
        """The same stages for another batch; None where it does not divide; not collective."""
        shares = self.plan.replicas * self.plan.micro_batches
        if batch_size % shares:
            return None
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
        """Raise RequestError on all ranks where two hold different values of one variable: models built differently.

        Once they have trained, moving statistics may differ: each replica has its own.
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
                            "strategy.scope(), or after keras.utils.set_random_seed(...), so that all ranks begin alike"
                        )
                    )

    def values(self, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Array]:
        """The values of all ranks' variables by name, replica 0's where each replica has its own."""
        own = {
            name: np.asarray(self.variables[name])
            for name, replica in self._own_keys
            if replica in (None, 0) and wanted(name)
        }
        return {name: value for each in gather_all(self.comm, own) for name, value in each.items()}

    def optimizer_values(self) -> dict[str, Array]:
        """The optimizer's, of all ranks."""
        return self.values(is_of_optimizer)

    def weights(self) -> list[Array]:
        """As the model's ``get_weights``; no rank keeps more than its part."""
        from hyparflow.graph.calls import variables_of

        names = {id(each): name for name, each in variables_of(self.model).items()}
        wanted = {names[id(each)] for each in self.model.weights}
        values = self.values(wanted.__contains__)
        return [values[names[id(each)]] for each in self.model.weights]

    def gather_rest(self) -> None:
        """Keep what else it takes to save the gathered model on any rank: the optimizer, and replica 0's statistics."""
        private = {name for name, replica in self._own_keys if replica is not None}
        private = set().union(*gather_all(self.comm, private))
        self._rest = self.values(lambda name: is_of_optimizer(name) or name in private)

    def take(self, state: Mapping[str, Array]) -> None:
        """Give this rank's part of the optimizer the values that the whole one had; not collective.

        :raises RequestError: if it was built for other variables.
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
        """As the model's ``load_weights``: a file that has the optimizer's state gives each rank its part of that."""
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
        """Write the whole model as Keras does: rank 0, which holds all of it meanwhile; each rank if it is whole."""
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
                trained_by = self.serves(self.model)  # else it was compiled again, with an optimizer that is new
                save_whole(self.model, values, path, weights_only, optimizer=trained_by, **options)
        finally:
            self._inner.global_clipnorm = None

    def _built_values(self) -> dict[str, Array]:
        optimizer = of_optimizer(self.model.optimizer)
        return {name: np.asarray(each) for name, each in (*self._built().items(), *optimizer.items())}

    def finalize(self) -> None:
        """What an optimizer does when a training ends: with ``use_ema`` the averages become the weights."""
        self._inner.finalize_variable_values(self._inner._trainable_variables)

    def close(self) -> None:
        """Give back what the engine has taken."""
        self.engine.close()
        self._inner.global_clipnorm = self._global_clipnorm

    def _built(self) -> Mapping[str, Any]:
        """Those of the model's variables that have a value on this rank."""
        from hyparflow.graph.calls import variables_of

        return {name: each for name, each in variables_of(self.model).items() if each._value is not None}

    def _keys(self, of_model: Mapping[str, Any]) -> list[Key]:
        """Moving statistics are each replica's own; everything else is equal on all ranks that have it."""
        private = self.plan.replicas > 1
        owned = {
            name: (int(np.prod(each.shape)), private and name in of_model and not each.trainable)
            for name, each in self.variables.items()
        }
        every = gather_all(self.comm, owned)
        self._private = any(alone for each in every for _, alone in each.values())
        return shares(every, self.plan.partitions)[self.comm.rank]


def _made_of(model: keras.Model) -> dict[int, Any]:
    """Layers and weights of a model by their ids: ``quantize``, ``enable_lora``, ``add`` and ``pop`` change them."""
    return {id(each): each for each in (*model._flatten_layers(include_self=False), *model.weights)}


def session_of(model: Any) -> Session | None:
    """What trains a model, or has trained it last."""
    found: Session | None = vars(model).get(SESSION)
    return found
