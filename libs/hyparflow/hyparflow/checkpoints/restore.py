"""Restoring of checkpoints, with any number of partitions and replicas, and the names of variables in them.

Names are the same for any partitioning, and in any process. Variables of a model have the names of
``hyparflow.graph.calls.variables_of`` (their paths). Variables of an optimizer start with ``optimizer/``
(``loss_scale/`` for those of mixed precision) instead of the optimizer's own name, which Keras numbers within the
process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hyparflow.checkpoints import directory, shards
from hyparflow.checkpoints.directory import Checkpoint
from hyparflow.checkpoints.shards import Entry, Shard
from hyparflow.errors import CheckpointError


def last_whole(root: Path, comm: Any = None) -> Checkpoint | None:
    """Return the last checkpoint below ``root`` whose files are intact; None if there is none.

    Damaged and interrupted checkpoints are reported on stderr and skipped. With ``comm``, the ranks share the reading
    and get the same result; without it, this process reads alone.
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
                _say(f"hyparflow: {problem}; trying the previous checkpoint")
    return None


def restore(checkpoint: Checkpoint, variables: Mapping[str, Any], replica: int) -> None:
    """Set variables to their values in a checkpoint.

    Args:
        checkpoint: The checkpoint.
        variables: Path -> variable.
        replica: If each replica had its own values, those of this replica are used, or of replica 0 if there were fewer
            replicas.

    Raises:
        CheckpointError: The checkpoint lacks a variable, or has it in another shape.
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


def of_optimizer(optimizer: Any, variables: Iterable[Any] | None = None) -> dict[str, Any]:
    """Return name -> variable of a built optimizer, or of some of its variables."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    found = {}
    for variable in optimizer.variables if variables is None else variables:
        first, _, rest = variable.path.partition("/")
        prefix = "optimizer" if first == inner.name else "loss_scale"
        found[f"{prefix}/{rest}"] = variable
    return found


def is_of_optimizer(name: str) -> bool:
    """Return whether this is the name of an optimizer's variable."""
    return name.partition("/")[0] in ("optimizer", "loss_scale")


def unbuild(optimizer: Any) -> None:
    """Reset an optimizer to its state before it was built; its values are lost."""
    fresh = type(optimizer).from_config(optimizer.get_config())
    vars(optimizer).clear()
    vars(optimizer).update(vars(fresh))
