"""Keras' loops for training, evaluation and prediction over many ranks, and the checkpoints of a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hyparflow.checkpoints.directory import Checkpoint, Progress
from hyparflow.checkpoints.restore import last_whole
from hyparflow.checkpoints.saver import Saver
from hyparflow.engine.engine import StepResult
from hyparflow.errors import RequestError
from hyparflow.training.agreement import any_of, gather_all, together
from hyparflow.training.callbacks import remembered, remind
from hyparflow.training.data import Source
from hyparflow.training.feed import TrainingFeed, evaluation
from hyparflow.training.metrics import Meter, rows_of
from hyparflow.training.requests import Checkpoints
from hyparflow.training.session import Session


class Training:
    """The epochs of one ``fit``."""

    def __init__(
        self,
        session: Session,
        feed: TrainingFeed,
        meter: Meter,
        callbacks: Any,
        *,
        seed: int,
        saver: Saver | None = None,
        every: int | None = None,
        validate: Callable[[int], dict[str, Any]] | None = None,
        watch: Callable[[int, StepResult], None] | None = None,
    ) -> None:
        """Prepare a training.

        Args:
            session: The session of the model.
            feed: The batches, starting at the current position.
            meter: Losses and metrics.
            callbacks: Keras' CallbackList.
            seed: Seed of the data, for checkpoints.
            saver: Writes checkpoints, or None.
            every: Steps between two checkpoints; None: at the end of each epoch.
            validate: Returns the validation logs of an epoch, empty if it has none.
            watch: Is called with every step's number and result, for timelines.
        """
        self._session, self._feed, self._meter, self._callbacks = session, feed, meter, callbacks
        self._seed, self._saver, self._every = seed, saver, every
        self._validate, self._watch = validate, watch
        self._history: dict[str, list[float]] = {}
        self._epochs: list[int] = []

    def run(self, first: int, epochs: int, begun: Progress | None = None) -> Any:
        """Train from epoch ``first`` (or the position of a checkpoint) to ``epochs``; return Keras' History.

        Args:
            first: The first epoch, from 0.
            epochs: The epoch to stop before.
            begun: The progress of a checkpoint, or None.
        """
        model, callbacks = self._session.model, self._callbacks
        model.stop_training = False
        callbacks.on_train_begin()
        done = 0
        if begun is not None:
            first, done = begun.epoch, begun.done
            self._recall(begun)
        logs: dict[str, Any] | None = None
        for epoch in range(first, epochs):
            logs = self._epoch(epoch, done, begun.totals if begun is not None and done else ())
            done = 0
            if self._stops():
                break
        self._session.finalize()
        if self._saver is not None:
            if self._saver.last != self._session.engine.step and self._epochs:
                self._save(self._epochs[-1] + 1, 0)
            self._saver.close()
        callbacks.on_train_end(logs)
        return model.history

    def _epoch(self, epoch: int, done: int, totals: Sequence[float]) -> dict[str, Any]:
        """Train an epoch.

        Raises:
            RequestError: A callback has compiled the model again, or changed its layers.
        """
        if not self._session.serves(self._session.model):
            raise RequestError(
                f"a callback has compiled model {self._session.model.name!r} again, or changed its layers, and fit() "
                f"goes on with epoch {epoch + 1}: let it end before (model.stop_training = True), and call it again"
            )
        self._meter.reset()
        if totals:
            self._meter.totals = totals
        self._callbacks.on_epoch_begin(epoch)
        self._steps(epoch, done)
        self._feed.check()
        logs = self._meter.agree()
        if self._validate is not None:
            logs |= self._validate(epoch)
        self._callbacks.on_epoch_end(epoch, logs)
        self._epochs.append(epoch)
        for name, value in logs.items():
            self._history.setdefault(name, []).append(value)
        if self._saver is not None and self._every is None:
            self._save(epoch + 1, 0)
        return logs

    def _steps(self, epoch: int, done: int) -> None:
        """Run steps, with callbacks and agreement of all ranks after every ``steps_per_execution`` of them."""
        engine, callbacks = self._session.engine, self._callbacks
        together = max(1, self._session.model.steps_per_execution)
        last = None  # of a group of steps that has begun
        for number, batch in enumerate(self._feed.epoch(done), done):
            if last is None:
                callbacks.on_train_batch_begin(number)
                last = number + together - 1
            result = engine.train_step(batch)
            self._meter.observe(result, batch)
            if self._watch is not None:
                self._watch(engine.step, result)
            stop = False
            if number == last:
                last = None
                callbacks.on_train_batch_end(number, self._meter.agree())
                stop = self._stops()
            if self._saver is not None:
                self._saver.poll()
                if self._every is not None and engine.step % self._every == 0:
                    self._meter.agree()
                    self._save(epoch, number + 1)
            if stop:
                return
        if last is not None:
            callbacks.on_train_batch_end(last, self._meter.agree())

    def _stops(self) -> bool:
        """Return whether a callback on any rank requests a stop."""
        stop = any_of(self._session.comm, bool(self._session.model.stop_training))
        self._session.model.stop_training = stop
        return stop

    def _save(self, epoch: int, done: int) -> None:
        assert self._saver is not None
        position = self._feed.position
        at_end = done == 0
        progress = Progress(
            step=self._session.engine.step,
            epoch=epoch,
            done=done,
            number=position.number,
            batch=position.batch,
            batch_size=self._session.plan.batch_size,
            micro_batches=self._session.plan.replicas * self._session.plan.micro_batches,
            seed=self._seed,
            totals=() if at_end else self._meter.totals,
            history=self._history,
            epochs=tuple(self._epochs),
            callbacks=remembered(self._callbacks.callbacks),
        )
        self._saver.save(self._session.variables, progress)

    def _recall(self, begun: Progress) -> None:
        """Restore the state of History and the callbacks."""
        self._history = {name: list(values) for name, values in begun.history.items()}
        self._epochs = list(begun.epochs)
        remind(self._callbacks.callbacks, begun.callbacks)
        history = self._session.model.history
        history.epoch = list(begun.epochs)
        history.history = {name: list(values) for name, values in begun.history.items()}


def train_on_batch(session: Session, feed: TrainingFeed, meter: Meter) -> dict[str, Any]:
    """Run one step with the only batch of the feed, and return its losses and metrics."""
    meter.reset()
    for batch in feed.epoch():
        meter.observe(session.engine.train_step(batch), batch)
    return meter.agree()


def evaluate(session: Session, source: Source, meter: Meter, callbacks: Any, steps: int | None) -> dict[str, Any]:
    """Return the losses and metrics of one pass over the data, with every sample counted once.

    Args:
        session: The session of the model.
        source: The data.
        meter: Losses and metrics.
        callbacks: Keras' CallbackList.
        steps: Number of batches, None for all.
    """
    callbacks.on_test_begin()
    meter.reset()
    together, last = max(1, session.model.steps_per_execution), -1
    given = (source, session.share, session.plan.batch_size)
    for number, part in evaluation(*given, steps, session.comm, together=together):
        if number != last and number % together == 0:
            if number:
                callbacks.on_test_batch_end(last, meter.agree())
            callbacks.on_test_batch_begin(number)
        last = number
        meter.observe(session.engine.test_step(part), part)
    logs = meter.agree()
    callbacks.on_test_batch_end(_end_of_group(last, together), logs)
    callbacks.on_test_end(logs)
    return logs


def predict(session: Session, source: Source, callbacks: Any, steps: int | None) -> Any:
    """Return the model's outputs for one pass over the data in its own structure, complete on every rank.

    Args:
        session: The session of the model.
        source: The data.
        callbacks: Keras' CallbackList.
        steps: Number of batches, None for all.
    """
    from keras import tree

    callbacks.on_predict_begin()
    structure = getattr(session.model, "_functional", session.model)._outputs_struct
    found: list[list[Any]] = [[] for _ in session.model.outputs]
    together, last, begun = max(1, session.model.steps_per_execution), -1, 0
    given = (source, session.share, session.plan.batch_size)

    def made(first: int) -> Any:
        return tree.pack_sequence_as(structure, [np.concatenate(parts[first:]) for parts in found])

    for number, part in evaluation(*given, steps, session.comm, together=together):
        if number != last and number % together == 0:
            if number:
                callbacks.on_predict_batch_end(last, {"outputs": made(begun)})
            callbacks.on_predict_batch_begin(number)
            begun = len(found[0])
        last = number
        outputs = {
            (output, session.seat.replica, micro_batch): np.array(value)[: rows_of(part, micro_batch)]
            for output, values in session.engine.predict_step(part).items()
            for micro_batch, value in values.items()
        }
        every = {key: value for each in gather_all(session.comm, outputs) for key, value in each.items()}
        for key in sorted(every):
            found[key[0]].append(every[key])
    callbacks.on_predict_batch_end(_end_of_group(last, together), {"outputs": made(begun)})
    callbacks.on_predict_end()
    return made(0)


def _end_of_group(number: int, together: int) -> int:
    """Return the last step of a step's group of ``steps_per_execution``; Keras counts a smaller last group as full."""
    return number - number % together + together - 1


def last_checkpoint(saving: Checkpoints, comm: Any) -> Checkpoint | None:
    """Return the checkpoint to continue from, and prepare the directory for new ones."""
    last = last_whole(saving.root, comm) if saving.restart else None

    def make_ready() -> None:
        if comm.rank == 0:
            saving.make_ready(-1 if last is None else last.progress.step)

    together(comm, make_ready)
    return last


def saver_of(saving: Checkpoints, session: Session, begun: Progress | None) -> Saver:
    """Create the writer of a session's checkpoints."""
    plan = session.plan
    about = {"fingerprint": plan.fingerprint, "partitions": plan.partitions, "replicas": plan.replicas}
    saver = Saver(saving.root, session.comm, session.keys, about, saving.keep)
    saver.last = None if begun is None else begun.step
    return saver
