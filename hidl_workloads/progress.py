"""Progress of one job of a run: a small file with its steps and checkpoints, from which hidl computes the goodput.

The file is rewritten in place about once per second, so that it also shows how far a killed job got.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCHEMA = "hidl.progress/1"
DIRECTORY = ".jobs"
"""Directory of the files of all jobs, within that of the checkpoints. Hidden files there do not count as progress."""

_EVERY = 1.0  # seconds between two writes
_SAVES = 16  # number of checkpoints listed
_SIZE = 2048  # bytes of the file, of which each write replaces all


class Progress:
    """The steps and checkpoints of this job; only rank 0 has one. A file that cannot be written is ignored."""

    def __init__(
        self,
        directory: Path,
        *,
        run: str,
        token: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Begin a job.

        Args:
            directory: Directory of the checkpoints.
            run: Id of the run.
            token: Name of the job, unique in the directory.
            clock: Seconds since any moment.
            now: Seconds since the epoch.
        """
        self._file = directory / DIRECTORY / f"{token}.json"
        self._clock, self._now = clock, now
        self._descriptor: int | None = None
        self._from: int | None = None
        self._mark = clock()  # end of the last step or checkpoint
        self._written = self._mark - _EVERY
        self._document: dict[str, Any] = {
            "schema": SCHEMA,
            "run": run,
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

    def end_checkpoint(self, *, saved: bool) -> None:
        """Count the time since the last step as that of a checkpoint, unless it was not ``saved``."""
        document, now = self._document, self._clock()
        if saved:
            document["checkpoints"] += 1
            document["checkpoint_seconds"] += now - self._mark
            document["saves"] = [*document["saves"], [document["step"], document["seconds"]]][-_SAVES:]
        self._mark = now
        self.write()

    def write(self) -> None:
        """Write the file, unless no step has ended."""
        if self._document["step"] is None:
            return
        text = json.dumps({**self._document, "written": self._now()})
        self._written = self._clock()
        try:
            if self._descriptor is None:
                self._file.parent.mkdir(exist_ok=True)
                self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._descriptor, text.ljust(_SIZE).encode(), 0)
        except OSError:  # the program matters more
            return
