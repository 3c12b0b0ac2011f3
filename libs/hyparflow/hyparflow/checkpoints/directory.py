"""A directory of checkpoints.

::

    DIR/step-0000000012/shard-00000.bin ...     of every rank that had something to write
                        manifest.json           written last, completes the checkpoint

Ranks write checkpoints without waiting for each other, so an interrupted checkpoint has no manifest. If a checkpoint is
damaged (a file is missing, truncated or changed), this is reported and the previous complete one is used.

Other programs may keep checkpoints in the same directory. Only files of hyparflow are read, moved or removed:
directories with the names above that contain an index or manifest with hyparflow's schema, or an unfinished shard, and
in them only files with the names above.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyparflow.checkpoints import shards
from hyparflow.checkpoints.shards import Shard
from hyparflow.errors import CheckpointError

SCHEMA = "hyparflow.checkpoint/1"
MANIFEST = "manifest.json"
_PREFIX = "step-"
_SHARD = re.compile(r"shard-[0-9]{5,}\.(bin|json)(\.part)?")
_UNFINISHED_SHARD = re.compile(r"shard-[0-9]{5,}\.bin\.part")
#: The start of each JSON file of a checkpoint, even of a truncated one.
_BEGINNING = b'{"schema": "hyparflow.'


@dataclass(frozen=True)
class Progress:
    """The progress of a training.

    ``step``: number of updates. ``epoch``: the current one; ``done``: number of its completed steps. ``number``,
    ``batch``: the next batch of the data (pass, and batch of the pass), in batches of ``batch_size`` samples, which
    consist of ``micro_batches`` over all replicas. ``seed``: seed of the order of the data. ``totals``: states of the
    metrics so far in this epoch. ``history``, ``epochs``: completed epochs. ``callbacks``: states of the callbacks.
    """

    step: int
    epoch: int
    done: int
    number: int
    batch: int
    batch_size: int
    micro_batches: int
    seed: int
    totals: tuple[float, ...] = ()
    history: Mapping[str, list[float]] = field(default_factory=dict)
    epochs: tuple[int, ...] = ()
    callbacks: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint with its manifest."""

    directory: Path
    fingerprint: str
    partitions: int
    replicas: int
    progress: Progress
    shards: tuple[Shard, ...]

    def damage(self, rank: int = 0, size: int = 1) -> list[str]:
        """Check every ``size``-th file, starting with number ``rank``, and return the problems found."""
        found = (shards.check(self.directory, shard) for shard in self.shards[rank::size])
        return [problem for problem in found if problem is not None]


def path_of(root: Path, step: int) -> Path:
    """Return the path of the checkpoint after ``step`` updates."""
    return root / f"{_PREFIX}{step:010}"


def finish(directory: Path, ranks: int, document: Mapping[str, Any]) -> None:
    """Complete a checkpoint: collect the indices of the shards of all ranks, and write the manifest.

    Args:
        directory: The directory of the checkpoint.
        ranks: Number of ranks.
        document: The manifest's other entries.
    """
    collected = [json.loads((directory / f"shard-{rank:05}.json").read_text("utf-8")) for rank in range(ranks)]
    shards.write_json(directory / MANIFEST, {"schema": SCHEMA, **document, "shards": collected})


def load(directory: Path) -> Checkpoint:
    """Load the checkpoint in ``directory`` without checking its files.

    Raises:
        CheckpointError: The manifest is missing or invalid.
    """
    path = directory / MANIFEST
    if not path.exists():
        raise CheckpointError(f"{directory} is not whole: {MANIFEST} is missing because saving was interrupted")
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["schema"] != SCHEMA:
            raise CheckpointError(f"{path} has the schema {document['schema']}, expected {SCHEMA}")
        progress = {name: _tuples(name, value) for name, value in document["progress"].items()}
        return Checkpoint(
            directory,
            document["fingerprint"],
            document["partitions"],
            document["replicas"],
            Progress(**progress),
            tuple(Shard.from_document(each) for each in document["shards"]),
        )
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}") from error


def found(root: Path) -> list[Path]:
    """Return all checkpoints of hyparflow in ``root``, complete or not, the latest first."""
    return sorted((each for each in _numbered(root) if _is_own(each)), key=_step, reverse=True)


def whole(root: Path) -> list[Path]:
    """Return the checkpoints with a manifest, the latest first."""
    return [each for each in found(root) if (each / MANIFEST).exists()]


def clear(root: Path, after: int) -> None:
    """Remove interrupted checkpoints, and rename those after step ``after``, which are damaged.

    Raises:
        CheckpointError: A checkpoint after step ``after`` could collide with a directory that hyparflow did not create.
            Nothing is changed then.
    """
    own = found(root)
    for each in _numbered(root):
        if each not in own and _step(each) > after and any(each.iterdir()):
            raise CheckpointError(
                f"{each} was not made by hyparflow, but a checkpoint of this training could need its name: "
                "use another directory"
            )
    for each in own:
        if not (each / MANIFEST).exists():
            _remove(each)
        elif _step(each) > after:
            each.rename(_free(each.with_name(f"damaged-{each.name}")))


def keep(root: Path, count: int) -> None:
    """Remove the oldest complete checkpoints, and keep ``count``."""
    for each in whole(root)[count:]:
        _remove(each)


def _numbered(root: Path) -> list[Path]:
    """Return the directories in ``root`` that have the name of a checkpoint."""
    return [each for each in root.glob(f"{_PREFIX}*") if each.is_dir() and path_of(root, _step(each)) == each]


def _step(path: Path) -> int:
    """Return the step in a checkpoint's name, -1 if there is none."""
    digits = path.name.removeprefix(_PREFIX)
    return int(digits) if re.fullmatch("[0-9]+", digits) else -1


def _is_own(path: Path) -> bool:
    """Return whether hyparflow created the contents of a directory."""
    files = _own_files(path)
    if any(_UNFINISHED_SHARD.fullmatch(each.name) for each in files):
        return True
    return any(_begins_as_own(each) for each in files if each.name.endswith(".json"))


def _own_files(path: Path) -> list[Path]:
    """Return the files in a directory that are named like files of a checkpoint."""
    names = (MANIFEST, f"{MANIFEST}.part")
    return [
        each
        for each in path.iterdir()
        if (each.name in names or _SHARD.fullmatch(each.name)) and each.is_file() and not each.is_symlink()
    ]


def _begins_as_own(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


def _remove(path: Path) -> None:
    """Remove the files of a checkpoint, and its directory if nothing else is in it."""
    (path / MANIFEST).unlink(missing_ok=True)  # first, so that a partial removal is not mistaken for a checkpoint
    for each in _own_files(path):
        each.unlink()
    if not any(path.iterdir()):
        path.rmdir()


def _free(path: Path) -> Path:
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _tuples(name: str, value: Any) -> Any:
    return tuple(value) if name in ("totals", "epochs", "callbacks") else value
