"""One rank's part of a checkpoint: a file with its variables, and an index.

::

    shard-00003.bin    the arrays one after the other, C order, little endian, each at a multiple of 64 bytes
    shard-00003.json   {"schema", "file", "size", "blake2b",
                        "entries": [{"path", "replica", "dtype", "shape", "offset"}]}

Each file is written under a temporary name and then renamed, the index after the data.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyparflow.errors import CheckpointError

SCHEMA = "hyparflow.shard/1"
_ALIGNMENT = 64
_CHUNK = 8 * 2**20

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Entry:
    """The position of one variable. ``replica``: the owner if each replica has its own value, else None."""

    path: str
    replica: int | None
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """The size in bytes."""
        return int(np.dtype(_numpy(self.dtype)).itemsize * np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Shard:
    """The index of one file."""

    file: str
    size: int
    blake2b: str
    entries: tuple[Entry, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the index as a JSON document."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Shard:
        """Parse the result of ``to_document``; raise CheckpointError if the document is invalid."""
        try:
            if document["schema"] != SCHEMA:
                raise CheckpointError(f"the document does not have the schema {SCHEMA}")
            entries = tuple(Entry(**{**each, "shape": tuple(each["shape"])}) for each in document["entries"])
            return cls(document["file"], document["size"], document["blake2b"], entries)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"the document is not a shard's index: {error!r}") from error


def write(directory: Path, rank: int, arrays: Mapping[tuple[str, int | None], Array]) -> Shard:
    """Write one rank's shard; ``arrays``: (path, replica) -> value."""
    name = f"shard-{rank:05}"
    digest = hashlib.blake2b()
    entries = []
    offset = 0
    partial = directory / f"{name}.bin.part"
    with partial.open("wb") as file:
        for (path, replica), value in arrays.items():
            entries.append(Entry(path, replica, value.dtype.name, value.shape, offset))
            data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            padding = bytes(-data.nbytes % _ALIGNMENT)
            for piece in (data.data, padding):
                file.write(piece)
                digest.update(piece)
            offset += data.nbytes + len(padding)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(directory / f"{name}.bin")
    shard = Shard(f"{name}.bin", offset, digest.hexdigest(), tuple(entries))
    write_json(directory / f"{name}.json", shard.to_document())
    return shard


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document atomically."""
    partial = path.with_name(path.name + ".part")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(document, file, default=_listed)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def check(directory: Path, shard: Shard) -> str | None:
    """Check a shard's file; return the problem (missing, truncated, changed bytes), or None if it is intact."""
    path = directory / shard.file
    try:
        size = path.stat().st_size
        if size != shard.size:
            return f"{path} has {size} bytes instead of {shard.size}"
        digest = hashlib.blake2b()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None if digest.hexdigest() == shard.blake2b else f"{path} is damaged: its checksum differs"


def read(directory: Path, shard: Shard, entries: Iterable[Entry]) -> Iterable[tuple[Entry, Array]]:
    """Yield the values of some of a shard's entries."""
    with (directory / shard.file).open("rb") as file:
        for entry in entries:
            file.seek(entry.offset)
            data = np.frombuffer(file.read(entry.size), dtype=np.uint8)
            yield entry, data.view(_numpy(entry.dtype)).reshape(entry.shape)


def _listed(value: Any) -> Any:
    """Convert NumPy numbers and arrays (metrics with several results) for JSON."""
    return value.tolist()


def _numpy(dtype: str) -> Any:
    if dtype == "bfloat16":
        from ml_dtypes import bfloat16

        return bfloat16
    return dtype
