"""Checkpoints of a training: where it goes on, and who writes them."""

from __future__ import annotations

from typing import Any

from hyparflow.checkpoints.directory import Checkpoint, Progress
from hyparflow.checkpoints.restoring import last_whole
from hyparflow.checkpoints.saving import Saver
from hyparflow.training.agreement import together
from hyparflow.training.requests import Checkpoints
from hyparflow.training.session import Session


def last_checkpoint(saving: Checkpoints, comm: Any) -> Checkpoint | None:
    """The checkpoint to go on from; the directory is made ready for new ones."""
    last = last_whole(saving.root, comm) if saving.restart else None

    def make_ready() -> None:
        if comm.rank == 0:
            saving.make_ready(-1 if last is None else last.progress.step)

    together(comm, make_ready)
    return last


def saver_of(saving: Checkpoints, session: Session, begun: Progress | None) -> Saver:
    """What makes the checkpoints of a session."""
    plan = session.plan
    about = {"fingerprint": plan.fingerprint, "partitions": plan.partitions, "replicas": plan.replicas}
    saver = Saver(saving.root, session.comm, session.keys, about, saving.keep)
    saver.last = None if begun is None else begun.step
    return saver
