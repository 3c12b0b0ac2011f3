"""The accounting: asked of jobs that squeue does not know any more, where it answers. Nothing depends on it."""

from __future__ import annotations

from collections.abc import Mapping

from hidl_cli.schedulers.board import Board, Snapshot
from hidl_cli.schedulers.slurm import jobs, programs
from hidl_cli.schedulers.slurm.jobs import Job

#: How long nobody asks again after it did not answer.
SILENCE_SECONDS = 300.0
_SILENT = "accounting does not answer"


class Accounting:
    """``sacct`` of one cluster (None: the one that it speaks to by itself)."""

    def __init__(self, board: Board, snapshot: Snapshot, cluster: str | None) -> None:
        self._board = board
        self._cluster = cluster
        self._answers = not 0 < snapshot.age_of(_SILENT) < SILENCE_SECONDS

    def find(self, wanted: Mapping[str, tuple[str | None, str]], since: float) -> dict[str, Job]:
        """The jobs that it knows: by id, or else by directory among all the user's jobs since then.

        ``wanted``: id and directory by whatever name the caller has for them.
        """
        ids = [number for number, _ in wanted.values() if number is not None]
        told = self._ask(ids=ids) if ids else []
        if len(ids) < len(wanted):
            told += self._ask(since=since)
        found = {mark: jobs.find(told, number, directory) for mark, (number, directory) in wanted.items()}
        return {mark: job for mark, job in found.items() if job is not None}

    def _ask(self, *, ids: list[str] | None = None, since: float | None = None) -> list[Job]:
        """What it tells; nothing where it is not there, does not answer in time, or has not lately."""
        if not self._answers:
            return []
        try:
            completed = programs.call(
                *jobs.sacct(self._cluster, ids=ids or (), since=since), timeout=programs.ACCOUNTING_SECONDS
            )
            self._answers = completed.status == 0
        except programs.NoAnswer:
            self._answers = False
        if not self._answers:
            self._board.note(over=[_SILENT])
            self._board.note(begun=[_SILENT])
            return []
        return jobs.read(completed.stdout.splitlines())
