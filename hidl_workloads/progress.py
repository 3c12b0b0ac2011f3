"""Progress of one job of a run: a small file with its steps and checkpoints, from which hidl computes the goodput.

The file is rewritten in place about once per second, so that it also shows how far a killed job got. A node that is
lost takes along what its file systems have not written yet. The file therefore reaches the disk or the file server
after the first step, with each checkpoint and about once per minute.

``hidl_workloads.checkpoint`` writes it by itself. A program with checkpoints of its own calls ``begin_job`` and reports
its steps and checkpoints to the result.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hidl_workloads import launcher_environment

STARTED = "HIDL_JOB_STARTED"
"""Variable with the start of the job in seconds since the epoch, as in its status."""

SCHEMA = "hidl.progress/1"
DIRECTORY = ".jobs"
"""Directory of the files of all jobs, within that of the checkpoints. Hidden files there do not count as progress."""

_EVERY = 1.0  # seconds between two writes
_SYNC_EVERY = 60.0  # seconds between two writes that reach the disk
_SAVES = 16  # number of checkpoints listed
_SIZE = 2048  # bytes of the file, of which each write replaces all


class Progress:
    """The steps and checkpoints of this job; only rank 0 has one. A file that cannot be written is ignored."""

    def __init__(
        self,
        directory: Path | None,
        *,
        run: str,
        token: str,
        job_started: str | None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Begin a job.

        Args:
            directory: Directory of the checkpoints; without it, nothing is written.
            run: Id of the run.
            token: Name of the job, unique in the directory.
            job_started: Value of ``$HIDL_JOB_STARTED``; without it, hidl does not use the file.
            clock: Seconds since any moment.
            now: Seconds since the epoch.
        """
        self._file = None if directory is None else directory / DIRECTORY / f"{token}.json"
        self._clock, self._now = clock, now
        self._descriptor: int | None = None
        self._from: int | None = None
        self._mark = clock()  # end of the last step or checkpoint
        self._written = self._mark - _EVERY
        self._synced = self._mark - _SYNC_EVERY
        self._document: dict[str, Any] = {
            "schema": SCHEMA,
            "run": run,
            "job_started": _number(job_started),
            "host": socket.gethostname(),
            "began": now(),
            "first_step_ended": None,
            "from_step": None,
            "first_step": None,
            "first_seconds": 0.0,
            "step": None,
            "seconds": 0.0,
            "checkpoints": 0,
            "checkpoint_seconds": 0.0,
            "saves": [],
        }

    def continue_from(self, step: int) -> None:
        """Note that the job continues after ``step``, or begins if it is 0."""
        self._from = step
        self._mark = self._clock()

    def end_step(self, step: int) -> None:
        """Count the time since the last step or checkpoint as that of the steps up to ``step``."""
        document, now = self._document, self._clock()
        seconds = now - self._mark
        if document["step"] is None:
            document.update(
                first_step_ended=self._now(),
                from_step=min(step, step - 1 if self._from is None else self._from),
                first_step=step,
                first_seconds=seconds,
            )
        else:
            document["seconds"] += seconds
        document["step"] = step
        self._mark = now
        if now - self._written >= _EVERY:
            self.write()
            self._mark = self._clock()

    def end_checkpoint(self, *, saved: bool = True) -> None:
        """Count the time since the last step as that of a checkpoint, unless it was not ``saved``."""
        document, now = self._document, self._clock()
        if saved:
            document["checkpoints"] += 1
            document["checkpoint_seconds"] += now - self._mark
            document["saves"] = [*document["saves"], [document["step"], document["seconds"]]][-_SAVES:]
        self.write(sync=True)
        self._mark = self._clock()

    def write(self, *, sync: bool = False) -> None:
        """Write the file, unless no step has ended; ``sync`` waits until it is on disk."""
        if self._file is None or self._document["step"] is None:
            return
        text = json.dumps({**self._document, "written": self._now()})
        self._written = self._clock()
        try:
            if self._descriptor is None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._descriptor, text.ljust(_SIZE).encode(), 0)
            if sync or self._written - self._synced >= _SYNC_EVERY:
                self._synced = self._written
                os.fsync(self._descriptor)
        except OSError:  # the program matters more
            return


def begin_job(step: int = 0, *, rank: int | None = None) -> Progress:
    """Return the record of this job, for a program with checkpoints of its own.

    It is written by rank 0 of a program that hidl started with ``--until-done``, and by no other.

    Args:
        step: Number of completed steps in the checkpoint from which the job continues; 0 at the beginning.
        rank: This process's rank. By default, it is ``$RANK``, which torchrun and hidl set, or the launcher's number of
            the process.
    """
    if rank is None:
        rank = launcher_environment.read_number(("RANK", *launcher_environment.RANKS), os.environ)
    directory, run, started = (os.environ.get(name) for name in ("HIDL_CHECKPOINT", "HIDL_RUN_ID", STARTED))
    is_recorded = not rank and directory and run and started
    progress = Progress(
        Path(directory) if is_recorded and directory else None,
        run=run or "",
        token=uuid.uuid4().hex,
        job_started=started,
    )
    progress.continue_from(step)
    return progress


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
