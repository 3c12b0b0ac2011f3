"""Saving without a stop: each rank copies what it writes, a thread writes it, and the training goes on.

When a rank's shard is written it joins a barrier that nobody waits for (``MPI_Ibarrier``); once all ranks have joined
it, rank 0 writes the manifest. Both are looked at between steps.
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

#: What a rank may write: path -> (bytes, whether each replica has its own value).
Owned = Mapping[str, tuple[int, bool]]
#: (path, replica): replica is None for what is equal on all replicas.
Key = tuple[str, int | None]


def shares(owned: Sequence[Owned], partitions: int) -> list[list[Key]]:
    """Who writes what: every value once, by one of the ranks that own it, and each about as many bytes.

    ``owned``: of each rank, in the order of the world.
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
    """A checkpoint that is being made."""

    path: Path
    document: Mapping[str, Any]
    shard: Future[Shard]
    barrier: Any = None


class Saver:
    """Makes the checkpoints of a training. All ranks call the same methods in the same order."""

    def __init__(self, root: Path, comm: Any, keys: Sequence[Key], about: Mapping[str, Any], keep: int | None) -> None:
        """``keys``: what this rank writes; ``about``: the manifest's fingerprint, partitions and replicas."""
        self.root = root
        self._comm = comm.Dup()
        self._keys = keys
        self._about = about
        self._keep = keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hyparflow-checkpoint")
        self._under: _Under | None = None
        self.last: int | None = None  # the step of the last one that was begun

    def save(self, variables: Mapping[str, Any], progress: Progress) -> None:
        """Begin a checkpoint of the values that the variables have now; one before it is brought to its end first."""
        self.wait()
        values: dict[Key, Array] = {key: np.asarray(variables[key[0]]).copy() for key in self._keys}
        path = directory.path_of(self.root, progress.step)
        document = {**self._about, "progress": asdict(progress)}
        self._under = _Under(path, document, self._thread.submit(self._write, path, values))
        self.last = progress.step

    def poll(self) -> None:
        """Bring a checkpoint forward, if there is one, without waiting; an error of the writing thread is raised."""
        if self._under is None:
            return
        if self._under.barrier is None and self._under.shard.done():
            self._joined()
        if self._under.barrier is not None and self._under.barrier.Test():
            self._finish()

    def wait(self) -> None:
        """Wait until the checkpoint that was begun is whole."""
        if self._under is None:
            return
        if self._under.barrier is None:
            self._joined()
        self._under.barrier.Wait()
        self._finish()

    def close(self) -> None:
        """Wait for the last one, on all ranks, and end the thread."""
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
