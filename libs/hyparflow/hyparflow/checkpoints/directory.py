"""A directory of checkpoints: which are whole, which is the last of them, and which may go.

::

    DIR/step-0000000012/shard-00000.bin ...     of every rank that had something to write
                        manifest.json           written last: with it, the checkpoint is whole

A checkpoint is made by ranks that do not wait for each other, so one that was interrupted lacks its manifest. One that
is damaged (a file is missing, cut off or changed) is named, and the last whole one before it is taken.

Other programs may keep checkpoints in the same directory. Only what hyparflow made is read, moved or removed: a
directory named as above, in which an index or manifest begins with hyparflow's schema, or in which a shard is still
being written; and of it only the files named as above.
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
#: How each JSON file of a checkpoint begins, even one that is cut off.
_BEGINNING = b'{"schema": "hyparflow.'


@dataclass(frozen=True)
class Progress:
    """How far a training had come.

    ``step``: updates done. ``epoch``: the current one, ``done``: its steps that are done. ``number``, ``batch``: the
    next batch of the data (pass and batch of the pass), in batches of ``batch_size`` samples, of which each is
    ``micro_batches`` over all replicas; ``seed``: of the order of the data. ``totals``: the metrics' states so far in
    this epoch. ``history``, ``epochs``: those that ended. ``callbacks``: what they remember.
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
    """A whole checkpoint: its manifest, read."""

    directory: Path
    fingerprint: str
    partitions: int
    replicas: int
    progress: Progress
    shards: tuple[Shard, ...]

    def damage(self, rank: int = 0, size: int = 1) -> list[str]:
        """What is wrong with every ``size``-th of its files, from number ``rank`` on."""
        found = (shards.check(self.directory, shard) for shard in self.shards[rank::size])
        return [problem for problem in found if problem is not None]


def path_of(root: Path, step: int) -> Path:
    """Where the checkpoint after ``step`` updates lies."""
    return root / f"{_PREFIX}{step:010}"


def finish(directory: Path, ranks: int, document: Mapping[str, Any]) -> None:
    """Make a checkpoint whole: collect the indices of the shards of ``ranks`` ranks, and write the manifest."""
    collected = [json.loads((directory / f"shard-{rank:05}.json").read_text("utf-8")) for rank in range(ranks)]
    shards.write_json(directory / MANIFEST, {"schema": SCHEMA, **document, "shards": collected})


def load(directory: Path) -> Checkpoint:
    """The checkpoint in ``directory``; its files are not looked at yet.

    :raises CheckpointError: if it has no manifest, or one that cannot be understood.
    """
    path = directory / MANIFEST
    if not path.exists():
        raise CheckpointError(f"{directory} is not whole: it has no {MANIFEST}; its making was interrupted")
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["schema"] != SCHEMA:
            raise CheckpointError(f"{path} has the schema {document['schema']}; this version reads {SCHEMA}")
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
    """All checkpoints of hyparflow in ``root``, whole or not, the last one first."""
    return sorted((each for each in _numbered(root) if _is_own(each)), key=_step, reverse=True)


def whole(root: Path) -> list[Path]:
    """Those with a manifest, the last one first."""
    return [each for each in found(root) if (each / MANIFEST).exists()]


def clear(root: Path, after: int) -> None:
    """Make room: remove interrupted checkpoints, and put away those after step ``after``, which are damaged.

    :raises CheckpointError: if a checkpoint after step ``after`` could meet a directory that hyparflow did not make;
        nothing is touched then.
    """
    own = found(root)
    for each in _numbered(root):
        if each not in own and _step(each) > after and any(each.iterdir()):
            raise CheckpointError(
                f"{each} was not made by hyparflow, and a checkpoint of this training may need its name: "
                "take another directory"
            )
    for each in own:
        if not (each / MANIFEST).exists():
            _remove(each)
        elif _step(each) > after:
            each.rename(_free(each.with_name(f"damaged-{each.name}")))


def keep(root: Path, count: int) -> None:
    """Remove the oldest whole checkpoints, so that ``count`` stay."""
    for each in whole(root)[count:]:
        _remove(each)


def _numbered(root: Path) -> list[Path]:
    """The directories in ``root`` that have the name of a checkpoint."""
    return [each for each in root.glob(f"{_PREFIX}*") if each.is_dir() and path_of(root, _step(each)) == each]


def _step(path: Path) -> int:
    """The step in a checkpoint's name; -1 where there is none."""
    digits = path.name.removeprefix(_PREFIX)
    return int(digits) if re.fullmatch("[0-9]+", digits) else -1


def _is_own(path: Path) -> bool:
    """Whether hyparflow made what lies in a directory."""
    files = _own_files(path)
    if any(_UNFINISHED_SHARD.fullmatch(each.name) for each in files):
        return True
    return any(_begins_as_own(each) for each in files if each.name.endswith(".json"))


def _own_files(path: Path) -> list[Path]:
    """The files in a directory that have names of a checkpoint's files."""
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
    """Remove a checkpoint, and nothing else that lies in its directory."""
    (path / MANIFEST).unlink(missing_ok=True)  # first: half a removal is not taken for a checkpoint
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
