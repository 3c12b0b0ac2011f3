"""The recorder's file of one rank: a header, and records of 64 bytes (recorder/recorder.c)."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpitraffic.errors import TrafficError

CALL, PAIR, EACH, SHARED, NAME, COMMUNICATOR, PHASE, EVENT, MEMBERS = range(1, 10)
#: How ranks exchanged data; the recorder adds the direction.
CHANNELS = ("point-to-point", "collective", "one-sided")
RECEIVED, FETCHED = 4, 8
NO_PEER = -1

_USAGE = (
    *("user_ns", "system_ns", "most_memory_kb", "minor_faults", "major_faults", "voluntary_switches"),
    *("involuntary_switches", "read_calls", "write_calls", "read_bytes", "written_bytes", "disk_read_bytes"),
    "disk_written_bytes",
)
_HEADER = struct.Struct("=8s2I4i2I10Q13Q13Q128s256s256s128s")
_MAGIC = b"MPITRAF2"
_RECORD = np.dtype(
    [("kind", "u4"), ("a", "i4"), ("b", "i4"), ("c", "i4"), ("phase", "u4"), ("thread", "u4"), ("v", "u8", 5)]
)
Records = npt.NDArray[np.void]


@dataclass(frozen=True)
class Header:
    """The beginning of a file: the process, its clocks and its use of the machine."""

    path: Path
    rank: int
    size: int
    pid: int
    thread_level: int
    finalized: bool
    waits_for_all: bool
    lost: dict[str, int]
    first_tick: int
    first_ns: int
    first_epoch_ns: int
    tick_ns: float
    wall_ns: int
    usage: dict[str, int]
    host: str
    command: str
    library: str
    job: str

    @property
    def world(self) -> tuple[str, int, str]:
        """Key of the MPI_COMM_WORLD to which the process belongs."""
        return self.job, self.size, f"{self.host}-{self.pid}" if self.size == 1 else ""


@dataclass(frozen=True)
class Communicator:
    """A communicator as one of its ranks recorded it; ``hash`` and ``ordinal`` are the same on all its ranks."""

    hash: int
    ordinal: int
    members: npt.NDArray[np.int64]
    me: int
    inter: bool
    name: str


@dataclass(frozen=True)
class RankFile:
    """All that one process recorded."""

    header: Header
    records: Records
    calls: dict[int, str]
    phases: dict[int, str]
    communicators: dict[int, Communicator]

    def of_kind(self, kind: int) -> Records:
        """Return the records of a kind."""
        records: Records = self.records[self.records["kind"] == kind]
        return records


def read_header(path: Path) -> Header:
    """Return the header of a file."""
    with path.open("rb") as file:
        return _header(path, file.read(_HEADER.size))


def read(path: Path) -> RankFile:
    """Return what a process recorded; a file whose process was killed is as good as any other."""
    data = path.read_bytes()
    header = _header(path, data[: _HEADER.size])
    (start,) = struct.unpack_from("=I", data, len(_MAGIC))
    whole = (len(data) - start) // _RECORD.itemsize
    records = np.frombuffer(data, _RECORD, max(whole, 0), start) if whole > 0 else np.empty(0, _RECORD)
    names: dict[int, dict[int, str]] = {0: {}, 1: {}, 2: {0: ""}}
    for record in records[records["kind"] == NAME]:
        names.setdefault(int(record["a"]), {})[int(record["b"])] = _text(record["v"].tobytes())
    return RankFile(header, records, names[0], names[2], dict(_communicators(records, header, names[1])))


def rank_files(directory: Path) -> Iterator[Path]:
    """Yield the files of a directory in the order of their ranks."""
    if not directory.is_dir():
        raise TrafficError(f"profile {directory}: not found")
    names = sorted(each.name for each in os.scandir(directory) if each.name.endswith(".mpitraffic"))
    yield from (directory / name for name in names)


def _header(path: Path, data: bytes) -> Header:
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise TrafficError(f"profile {path}: not a file of this version's recorder, or cut short")
    _, _, _, rank, size, pid, level, finalized, waits, *numbers = _HEADER.unpack(data)
    lost, ticks, first, last = numbers[:4], numbers[4:10], numbers[10:23], numbers[23:36]
    texts = [_text(each) for each in numbers[36:]]
    first_tick, first_ns, epoch, started_tick, last_tick, last_ns = ticks
    tick_ns = (last_ns - first_ns) / (last_tick - first_tick) if last_tick > first_tick else 1.0
    usage = {name: int(now) - int(then) for name, now, then in zip(_USAGE, last, first, strict=True)}
    usage["most_memory_kb"] = int(last[_USAGE.index("most_memory_kb")])
    names = ("records", "events", "requests", "communicators")
    return Header(
        path,
        rank,
        size,
        pid,
        level,
        bool(finalized),
        bool(waits),
        dict(zip(names, lost, strict=True)),
        first_tick,
        first_ns,
        epoch,
        tick_ns,
        round((last_tick - started_tick) * tick_ns),
        usage,
        *texts,
    )


def _communicators(records: Records, header: Header, names: dict[int, str]) -> Iterator[tuple[int, Communicator]]:
    runs: dict[int, list[npt.NDArray[np.int64]]] = {}
    members = records[records["kind"] == MEMBERS]
    for record in members[np.lexsort((members["c"], members["b"]))]:
        for first, length, stride in np.frombuffer(record["v"].tobytes()[:36], "i4").reshape(3, 3).astype(int):
            if length:
                run = np.arange(length, dtype=np.int64) * stride + first
                runs.setdefault(int(record["b"]), []).append(run)
    for record in records[records["kind"] == COMMUNICATOR]:
        number, flags = int(record["b"]), int(record["phase"])
        ranks = _all(header.size) if flags & 1 else np.concatenate(runs.get(number, [np.empty(0, np.int64)]))
        me = int(record["v"][1])
        yield (
            number,
            Communicator(int(record["v"][0]), int(record["a"]), ranks, me, bool(flags & 2), names.get(number, "")),
        )


@lru_cache(maxsize=1)
def _all(size: int) -> npt.NDArray[np.int64]:
    return np.arange(size, dtype=np.int64)


def _text(data: bytes) -> str:
    return " ".join(data.partition(b"\0")[0].decode("utf-8", "replace").split())
