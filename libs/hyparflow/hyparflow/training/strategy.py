"""``hyparflow.Strategy`` and ``hyparflow.fit``: training, evaluation and prediction over MPI with Keras' interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hyparflow.checkpoints.directory import Progress
from hyparflow.engine.engine import Options
from hyparflow.training import callbacks as own_callbacks
from hyparflow.training import dispatch, requests
from hyparflow.training import fit as loops
from hyparflow.training.agreement import check_whole_images, check_world, share_random_state, shared_seed, together
from hyparflow.training.data import Source, is_batched, source, split, unpacked, widened
from hyparflow.training.feed import Position, TrainingFeed, whole_groups
from hyparflow.training.fit import last_checkpoint, saver_of
from hyparflow.training.layout import Layout
from hyparflow.training.model_io import ModelIO
from hyparflow.training.recorder import Recorder
from hyparflow.training.session import Session, session_of
from hyparflow.training.sessions import Sessions

if TYPE_CHECKING:
    import keras

    from hyparflow.planning.plan import Plan


class Strategy(ModelIO):
    """Training of models on ``partitions`` x ``replicas`` ranks.

    ::

        strategy = hyparflow.Strategy(partitions=4, replicas=2)
        with strategy.scope():
            model = build()
        model.compile("adam", "mse", metrics=["mae"])
        history = strategy.fit(model, x, y, batch_size=256, epochs=10, validation_split=0.1)
        strategy.evaluate(model, x_test, y_test)

    Every rank runs the same program, and calls the same methods with the same data.
    """

    def __init__(
        self,
        partitions: int | None = None,
        replicas: int = 1,
        micro_batches: int | Literal["auto"] = "auto",
        *,
        schedule: str = "1f1b",
        chunks: int = 1,
        recompute: Any = "auto",
        assignment: Any = "auto",
        costs: Any = "auto",
        memory_limit: int | None = None,
        network: Any = None,
        refinements: int = 0,
        plan: Plan | None = None,
        batch_norm: Literal["replica", "synchronised", "deferred"] = "replica",
        bucket_bytes: int = Options.bucket_bytes,
        seed: int | None = None,
        comm: Any = None,
    ) -> None:
        """Create a strategy; collective.

        Args:
            partitions: Ranks that share one model (default: all ranks, divided by the replicas).
            replicas: Copies of the model (default: 1).
            micro_batches: Micro-batches of a replica's step; "auto" (default) selects them by the cost model.
            schedule, chunks, recompute, assignment, costs, memory_limit, network, refinements: See ``hyparflow.plan``.
            plan: An existing plan to use instead of all these.
            batch_norm, bucket_bytes: See ``hyparflow.backends.ProgramOptions``.
            seed: Seed of the initial weights of models built in ``scope``, and of the order of the data. By default,
                both follow from rank 0's random numbers, and so from ``keras.utils.set_random_seed``, without changing
                them.
            comm: mpi4py's communicator (default: ``MPI.COMM_WORLD``).

        Raises:
            PlanError: The plan divides images; raised on all ranks.
            WorldError: There are too few or too many ranks; raised on all ranks.
        """
        from mpi4py import MPI

        super().__init__(MPI.COMM_WORLD if comm is None else comm)
        if plan is not None:
            check_whole_images(plan.spatial)
            partitions, replicas = plan.partitions, plan.replicas
        if partitions is None:
            partitions = self.comm.size // max(replicas, 1)
        check_world(self.comm.size, partitions, replicas)
        self._seed = seed
        self._order_seed: int | None = None
        request = {
            "schedule": schedule, "chunks": chunks, "recompute": recompute, "assignment": assignment, "costs": costs,
            "memory_limit": memory_limit, "network": network, "refinements": refinements,
        }  # fmt: skip
        self._sessions = Sessions(
            self.comm,
            partitions=partitions,
            replicas=replicas,
            micro_batches=micro_batches,
            plan=plan,
            request=request,
            options=Options(batch_norm=batch_norm, bucket_bytes=bucket_bytes),
        )

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Build models in this context: from the same seed on all ranks, and without memory for other ranks' variables.

        The call is collective. The models' own ``fit``, ``evaluate``, ``predict``, ``train_on_batch``, ``save`` and so
        on run under this strategy, inside the context and later. So do those of every model that is used inside.
        """
        import keras

        from hyparflow.graph.initialise import deferred

        if self._seed is None:
            share_random_state(self.comm)
        else:
            keras.utils.set_random_seed(self._seed)
        with dispatch.scope(self), deferred() if self._sessions.partitions > 1 else nullcontext():
            yield

    def fit(
        self,
        model: keras.Model,
        x: Any = None,
        y: Any = None,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Sequence[Any] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
        checkpoint: str | Path | None = None,
        checkpoint_every: int | Literal["epoch"] = "epoch",
        keep: int | None = 2,
        restart: bool = False,
        trace: str | Path | None = None,
        trace_steps: tuple[int, int] = (1, 20),
        tensorboard: str | Path | None = None,
    ) -> keras.callbacks.History:
        """Train a compiled model; arguments not listed here are those of ``keras.Model.fit``.

        ``batch_size`` is the number of samples of one update over all replicas. A smaller last batch is an update too.
        Invalid requests raise the same HyparflowError on all ranks before any training; see
        ``hyparflow.training.guard`` for ranks that fail later.

        Args:
            checkpoint: A directory of checkpoints (default: none). Files of other programs in it are not changed.
            checkpoint_every: Steps between two checkpoints, or "epoch" (default).
            keep: Number of checkpoints to keep (default: 2); None: all.
            restart: Continue from the last complete checkpoint in the directory, if any, with its data position, seeds
                and history. Otherwise, the directory must contain no checkpoint.
            trace: A file for the timeline of some steps, in Chrome's format.
            trace_steps: The first and last step of the timeline, from 1.
            tensorboard: A directory for TensorBoard scalars about the pipeline.

        Returns:
            Keras' History, equal on all ranks.
        """
        with self.all_ranks("fit"):
            together(self.comm, lambda: requests.check_model(model, x))
            layout = Layout.of(model)
            saving = together(self.comm, lambda: requests.checkpoints(checkpoint, checkpoint_every, keep, restart))
            last = None if saving is None else last_checkpoint(saving, self.comm)
            begun = None if last is None else last.progress
            seed = self._seed_of_order(begun)

            def sources() -> tuple[Source, Source | None]:
                train: Any = (x, y, sample_weight)
                held_out: Any = None if validation_data is None else unpacked(validation_data)
                if validation_split and validation_data is None:
                    train, held_out = split(train, validation_split)
                training = source(
                    layout, *train, batch_size=batch_size, shuffle=shuffle, class_weight=class_weight, seed=seed
                )
                if held_out is None:
                    return training, None
                return training, source(
                    layout, *held_out, batch_size=validation_batch_size or _size(training, held_out)
                )

            training, validation = together(self.comm, sources)
            epochs = requests.capped_epochs(epochs)
            steps_per_epoch = requests.capped_steps(steps_per_epoch, training.batches)
            if validation is not None:
                validation_steps = requests.capped_steps(validation_steps, validation.batches)
            session = self._opened_to_train(model, training.batch_size, begun)
            if last is None:
                session.check_equal()
            else:
                together(self.comm, lambda: session.restore(last, training.batch_size, seed))
            session.release()
            recorder = Recorder(session, trace, trace_steps, tensorboard)
            feed = TrainingFeed(
                training,
                session.share,
                whole_groups(steps_per_epoch, max(1, model.steps_per_execution)),
                Position() if begun is None else Position(begun.number, begun.batch),
                self.comm,
            )
            meter = self._sessions.meter(session, training)
            listed = self._callback_list(session, callbacks, verbose, True, epochs=epochs, steps=feed.steps)

            def validate(epoch: int) -> dict[str, Any]:
                if validation is None or not requests.validates(epoch, validation_freq):
                    return {}
                held_out = _widened(validation, session, validation_steps)
                logs = loops.evaluate(session, held_out, meter, listed, validation_steps)
                return {f"val_{name}": value for name, value in logs.items()}

            run = loops.Training(
                session,
                feed,
                meter,
                listed,
                seed=seed,
                saver=None if saving is None else saver_of(saving, session, begun),
                every=None if saving is None else saving.every,
                validate=validate,
                watch=recorder.step if recorder.wanted else None,
            )
            history = run.run(initial_epoch, epochs, begun)
            recorder.close()
            return history

    def evaluate(
        self,
        model: keras.Model,
        x: Any = None,
        y: Any = None,
        *,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Evaluate like ``keras.Model.evaluate``, with the same results on all ranks; every sample counts once."""
        with self.all_ranks("evaluate"):
            session, given, steps = self._opened_for(model, (x, y, sample_weight), batch_size, steps)
            listed = self._callback_list(session, callbacks, verbose, steps=steps or given.batches)
            logs = loops.evaluate(session, given, self._sessions.meter(session, given), listed, steps)
            return logs if return_dict else model._flatten_metrics_in_order(logs)

    def predict(
        self,
        model: keras.Model,
        x: Any,
        *,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> Any:
        """Predict like ``keras.Model.predict``; every rank gets all predictions."""
        with self.all_ranks("predict"):
            session, given, steps = self._opened_for(model, (x, None, None), batch_size, steps)
            listed = self._callback_list(session, callbacks, verbose, steps=steps or given.batches)
            return loops.predict(session, given, listed, steps)

    def train_on_batch(
        self,
        model: keras.Model,
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Train like ``keras.Model.train_on_batch``: one update, from a batch that all ranks have."""
        with self.all_ranks("train_on_batch"):
            together(self.comm, lambda: requests.check_model(model, x))
            layout = Layout.of(model)
            size = together(self.comm, lambda: len(layout.samples(x, y, sample_weight)))
            given = together(
                self.comm,
                lambda: source(layout, x, y, sample_weight, batch_size=size, class_weight=class_weight),
            )
            known, held = self._sessions.has(model), session_of(model)
            planned = held.plan.batch_size if known and held is not None else 0
            session = self._opened_to_train(model, max(planned, size), None)  # a smaller batch is divided as in fit
            if not known:
                session.check_equal()
            session.release()
            meter = self._sessions.meter(session, given)
            logs = loops.train_on_batch(session, TrainingFeed(given, session.share, 1, Position(), self.comm), meter)
            return logs if return_dict else model._flatten_metrics_in_order(logs)

    def test_on_batch(
        self, model: keras.Model, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Evaluate like ``keras.Model.test_on_batch``."""
        size = _rows(x)
        how: dict[str, Any] = {"batch_size": size, "verbose": 0, "return_dict": return_dict}
        return self.evaluate(model, x, y, sample_weight=sample_weight, **how)

    def predict_on_batch(self, model: keras.Model, x: Any) -> Any:
        """Predict like ``keras.Model.predict_on_batch``."""
        return self.predict(model, x, batch_size=_rows(x), verbose=0)

    @property
    def plan(self) -> Plan | None:
        """The plan in use, once a model was trained or evaluated; before that, the given one."""
        return self._sessions.plan

    def _seed_of_order(self, begun: Progress | None) -> int:
        """Return the seed of the data's order: the given one, a checkpoint's, or a random one; collective."""
        if self._seed is not None:
            return self._seed
        if begun is not None:
            self._order_seed = begun.seed
        elif self._order_seed is None:
            self._order_seed = shared_seed(self.comm)
        return self._order_seed

    def _opened(self, model: keras.Model, batch_size: int, begun: Progress | None) -> Session:
        session = self._sessions.opened(model, batch_size, begun)
        dispatch.hold(model, self, session)
        return session

    def _opened_to_train(self, model: keras.Model, batch_size: int, begun: Progress | None) -> Session:
        session = self._opened(model, batch_size, begun)
        together(self.comm, lambda: requests.check_training(model, session.plan))
        return session

    def _opened_for(
        self, model: keras.Model, data: tuple[Any, Any, Any], batch_size: int | None, steps: int | None
    ) -> tuple[Session, Source, int | None]:
        """Return the session, the data and the steps of an evaluation or a prediction."""
        together(self.comm, lambda: requests.check_model(model, data[0]))
        given = together(self.comm, lambda: source(Layout.of(model), *data, batch_size=batch_size))
        session = session_of(model)
        if session is None or not self._sessions.has(model):
            session = self._opened(model, self._sessions.least(given.batch_size), None)
        steps = requests.capped_steps(steps, given.batches)
        return session, _widened(given, session, steps), steps

    def _callback_list(
        self, session: Session, given: Any, verbose: Any, history: bool = False, **parameters: Any
    ) -> Any:
        """Return Keras' container of the callbacks that run on this rank; only rank 0 has a progress bar."""
        from keras import tree
        from keras.callbacks import CallbackList

        rank = self.comm.rank
        if isinstance(given, CallbackList):
            given = given.callbacks
        callbacks: list[Any] = [each for each in tree.flatten(given) if each is not None]
        together(self.comm, lambda: own_callbacks.check(callbacks))
        found = CallbackList(
            own_callbacks.of_rank(callbacks, rank),
            add_history=history,
            add_progbar=rank == 0 and verbose != 0,
            model=own_callbacks.View(session.model, session.variables, session.save),
            verbose=verbose if rank == 0 else 0,
            **{"epochs": 1, **parameters},
        )
        own_callbacks.show_model(found.callbacks, session.model)
        return found


def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    *,
    partitions: int | None = None,
    replicas: int = 1,
    micro_batches: int | Literal["auto"] = "auto",
    **options: Any,
) -> keras.callbacks.History:
    """Train in one call: ``Strategy(partitions, replicas, micro_batches, ...).fit(model, x, y, ...)``.

    The options of ``Strategy`` (schedule, recompute, batch_norm, seed, ...) and of ``Strategy.fit`` (batch_size,
    epochs, callbacks, checkpoint, ...) can be mixed.
    """
    import inspect

    of_strategy = set(inspect.signature(Strategy).parameters) & set(options)
    how = {name: options.pop(name) for name in of_strategy}
    return Strategy(partitions, replicas, micro_batches, **how).fit(model, x, y, **options)


def _widened(given: Source, session: Session, steps: int | None) -> Source:
    """Divide the data of an evaluation or prediction into the ranks' own batches if that gives the same results."""
    return widened(given, session.plan.batch_size, steps is not None or session.totals.batchwise)


def _size(training: Source, data: Any) -> int | None:
    """Return the batch size of validation data in arrays, which in Keras is that of training."""
    return None if is_batched(data[0]) else training.batch_size


def _rows(x: Any) -> int:
    """Return the number of samples of a batch."""
    from keras import tree

    return len(tree.flatten(x)[0])
