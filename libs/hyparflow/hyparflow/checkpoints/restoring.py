"""Going on from a checkpoint, with any number of partitions and replicas."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyparflow.checkpoints import directory, shards
from hyparflow.checkpoints.directory import Checkpoint
from hyparflow.checkpoints.shards import Entry, Shard
from hyparflow.errors import CheckpointError


def last_whole(root: Path, comm: Any = None) -> Checkpoint | None:
    """The last checkpoint below ``root`` whose files are what was written; None if there is none.

    Damaged and interrupted ones are named on stderr and passed over. ``comm``: the ranks share the reading, and all
    have the same answer; without it this process reads alone.
    """
    rank, size = (0, 1) if comm is None else (comm.rank, comm.size)
    for path in _everywhere(comm, directory.found(root) if rank == 0 else []):
        problems: list[str] = []
        checkpoint = None
        try:
            checkpoint = directory.load(path)
            problems = checkpoint.damage(rank, size)
        except CheckpointError as error:
            problems = [str(error)] if rank == 0 else []
        whole = checkpoint is not None and not problems
        if comm is not None:
            problems = [each for found in comm.allgather(problems) for each in found]
            whole = all(comm.allgather(whole))
        if whole:
            return checkpoint
        if rank == 0:
            for problem in problems:
                _say(f"hyparflow: {problem}; the checkpoint before it is looked at")
    return None


def restore(checkpoint: Checkpoint, variables: Mapping[str, Any], replica: int) -> None:
    """Give variables the values that a checkpoint has for them, by path.

    ``replica``: where each replica had values of its own, this one's are taken, or replica 0's where there was none.

    :raises CheckpointError: if the checkpoint lacks a variable, or has it in another shape.
    """
    wanted: dict[str, tuple[Shard, Entry]] = {}
    for shard in checkpoint.shards:
        for entry in shard.entries:
            better = entry.replica == replica or (entry.path not in wanted and entry.replica in (None, 0))
            if entry.path in variables and better:
                wanted[entry.path] = (shard, entry)
    if missing := sorted(set(variables) - set(wanted)):
        raise CheckpointError(f"{checkpoint.directory} has no {missing[0]} ({len(missing)} variables are missing)")
    for path, (_, entry) in wanted.items():
        if tuple(variables[path].shape) != entry.shape:
            shape = tuple(variables[path].shape)
            raise CheckpointError(f"{path} is {shape}, and {entry.shape} in {checkpoint.directory}")
    for shard in checkpoint.shards:
        entries = [entry for found, entry in wanted.values() if found is shard]
        for entry, value in shards.read(checkpoint.directory, shard, entries):
            variables[entry.path].assign(value)


def _everywhere(comm: Any, value: list[Path]) -> list[Path]:
    if comm is None:
        return value
    found: list[Path] = comm.bcast(value, root=0)
    return found


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
