"""One rank's part of a checkpoint: its variables in one file, and an index that says what lies where.

::

    shard-00003.bin    the arrays one after the other, C order, little endian, each at a multiple of 64 bytes
    shard-00003.json   {"schema", "file", "size", "blake2b",
                        "entries": [{"path", "replica", "dtype", "shape", "offset"}]}

Each is written beside its place and renamed into it, the index after the data.
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
    """Where one variable lies. ``replica``: whose it is, where each replica has its own; else None."""

    path: str
    replica: int | None
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """In bytes."""
        return int(np.dtype(_numpy(self.dtype)).itemsize * np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Shard:
    """The index of one file."""

    file: str
    size: int
    blake2b: str
    entries: tuple[Entry, ...]

    def to_document(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Shard:
        """The inverse of ``to_document``; raises CheckpointError where the document is not one."""
        try:
            if document["schema"] != SCHEMA:
                raise CheckpointError(f"not a document of the schema {SCHEMA}")
            entries = tuple(Entry(**{**each, "shape": tuple(each["shape"])}) for each in document["entries"])
            return cls(document["file"], document["size"], document["blake2b"], entries)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"not a shard's index: {error!r}") from error


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
    """Write a document beside its place, and rename it into it."""
    partial = path.with_name(path.name + ".part")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(document, file, default=_listed)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def check(directory: Path, shard: Shard) -> str | None:
    """What is wrong with a shard's file: missing, cut off, or not the bytes that were written; None if it is whole."""
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
    return None if digest.hexdigest() == shard.blake2b else f"{path} is damaged: its bytes are not those written"


def read(directory: Path, shard: Shard, entries: Iterable[Entry]) -> Iterable[tuple[Entry, Array]]:
    """The values of some of a shard's entries, one after the other."""
    with (directory / shard.file).open("rb") as file:
        for entry in entries:
            file.seek(entry.offset)
            data = np.frombuffer(file.read(entry.size), dtype=np.uint8)
            yield entry, data.view(_numpy(entry.dtype)).reshape(entry.shape)


def _listed(value: Any) -> Any:
    """NumPy's numbers and arrays (metrics with several results) as JSON has them."""
    return value.tolist()


def _numpy(dtype: str) -> Any:
    if dtype == "bfloat16":
        from ml_dtypes import bfloat16

        return bfloat16
    return dtype
