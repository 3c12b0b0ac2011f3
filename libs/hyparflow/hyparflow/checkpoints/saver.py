"""Asynchronous saving: each rank copies its values, and a thread writes them while the training continues.

A rank whose shard is written joins a nonblocking barrier (``MPI_Ibarrier``); once all ranks have joined it, rank 0
writes the manifest. Both are checked between steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyparflow.checkpoints import directory, shards
from hyparflow.checkpoints.directory import Progress
from hyparflow.checkpoints.shards import Array, Shard

#: The values that a rank may write: path -> (bytes, True if each replica has its own value).
Owned = Mapping[str, tuple[int, bool]]
#: (path, replica): replica is None for values that are equal on all replicas.
Key = tuple[str, int | None]


def shares(owned: Sequence[Owned], partitions: int) -> list[list[Key]]:
    """Distribute the writing: every value once, by one of the ranks that own it, with about equal bytes for each.

    Args:
        owned: The values of each rank, in the order of the world.
        partitions: Ranks per replica.
    """
    written: list[list[Key]] = [[] for _ in owned]
    load = [0] * len(owned)
    owners: dict[Key, list[int]] = {}
    for rank, paths in enumerate(owned):
        for path, (_, private) in paths.items():
            owners.setdefault((path, rank // partitions if private else None), []).append(rank)
    for key, ranks in owners.items():
        rank = min(ranks, key=lambda each: (load[each], each))
        written[rank].append(key)
        load[rank] += owned[rank][key[0]][0]
    return written


@dataclass
class _Under:
    """A checkpoint in progress."""

    path: Path
    document: Mapping[str, Any]
    shard: Future[Shard]
    barrier: Any = None


class Saver:
    """A writer of the checkpoints of a training. All ranks call the same methods in the same order."""

    def __init__(self, root: Path, comm: Any, keys: Sequence[Key], about: Mapping[str, Any], keep: int | None) -> None:
        """Prepare to write checkpoints; collective.

        Args:
            root: The directory of checkpoints.
            comm: mpi4py's communicator of all ranks.
            keys: The values that this rank writes.
            about: The manifest's fingerprint, partitions and replicas.
            keep: Number of checkpoints to keep; None: all.
        """
        self.root = root
        self._comm = comm.Dup()
        self._keys = keys
        self._about = about
        self._keep = keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hyparflow-checkpoint")
        self._under: _Under | None = None
        self.last: int | None = None  # the step of the last checkpoint that was started

    def save(self, variables: Mapping[str, Any], progress: Progress) -> None:
        """Start a checkpoint of the current values, after completing a previous one."""
        self.wait()
        values: dict[Key, Array] = {key: np.asarray(variables[key[0]]).copy() for key in self._keys}
        path = directory.path_of(self.root, progress.step)
        document = {**self._about, "progress": asdict(progress)}
        self._under = _Under(path, document, self._thread.submit(self._write, path, values))
        self.last = progress.step

    def poll(self) -> None:
        """Advance a checkpoint in progress without waiting; errors of the writing thread are raised here."""
        if self._under is None:
            return
        if self._under.barrier is None and self._under.shard.done():
            self._joined()
        if self._under.barrier is not None and self._under.barrier.Test():
            self._finish()

    def wait(self) -> None:
        """Wait until the checkpoint in progress is complete."""
        if self._under is None:
            return
        if self._under.barrier is None:
            self._joined()
        self._under.barrier.Wait()
        self._finish()

    def close(self) -> None:
        """Wait for the last checkpoint on all ranks, and end the thread."""
        self.wait()
        self._comm.Barrier()
        self._thread.shutdown()
        self._comm.Free()

    def _write(self, path: Path, values: Mapping[Key, Array]) -> Shard:
        path.mkdir(parents=True, exist_ok=True)
        return shards.write(path, self._comm.rank, values)

    def _joined(self) -> None:
        assert self._under is not None
        self._under.shard.result()
        self._under.barrier = self._comm.Ibarrier()

    def _finish(self) -> None:
        assert self._under is not None
        under, self._under = self._under, None
        if self._comm.rank == 0:
            directory.finish(under.path, self._comm.size, under.document)
            if self._keep is not None:
                directory.keep(self.root, self._keep)
