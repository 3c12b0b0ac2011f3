"""Other programs' formats: Chrome's and Perfetto's trace JSON, CSV and Parquet tables, OTF2."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpitraffic import files
from mpitraffic.errors import TrafficError
from mpitraffic.files import CHANNELS, Header
from mpitraffic.profile import Profile, call_rows, label, rank_rows, world

Row = dict[str, Any]
#: Tables by name.
TABLES = ("calls", "ranks", "pairs")


def table(profile: Profile, name: str) -> list[Row]:
    """Return the rows of a table: ``calls``, ``ranks``, or ``pairs`` of ranks (bins of ranks in large worlds)."""
    if name == "calls":
        return call_rows(profile)
    if name == "ranks":
        return rank_rows(profile.ranks)
    return [
        {
            "channel": channel,
            "from_rank": int(source) * profile.bin_width,
            "to_rank": int(target) * profile.bin_width,
            "messages": int(profile.messages[number, source, target]),
            "bytes": int(profile.bytes[number, source, target]),
        }
        for number, channel in enumerate(CHANNELS)
        for source, target in zip(*profile.messages[number].nonzero(), strict=True)
    ]


def write_table(profile: Profile, name: str, path: Path) -> None:
    """Write a table as CSV, or as Parquet if the file's name ends so."""
    rows = table(profile, name)
    if path.suffix == ".parquet":
        try:
            import pandas
        except ImportError:
            raise TrafficError("Parquet requires pandas", "install pandas and pyarrow, or write CSV") from None
        pandas.DataFrame(rows).to_parquet(path)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def write_trace(directory: Path, path: Path) -> int:
    """Write the recorded events as a trace for Perfetto and return their number."""
    headers = world(directory).headers
    _require_events(directory, headers)
    origin = min(each.first_epoch_ns for each in headers)
    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[')
        separator = "\n"
        for header in headers:
            for event in _trace(files.read(header.path), origin):
                file.write(separator + json.dumps(event, separators=(",", ":")))
                separator = ",\n"
                count += event["ph"] == "X"
        file.write("\n]}\n")
    return count


def _trace(rank: files.RankFile, origin: int) -> Iterator[Row]:
    number = rank.header.rank
    name = {"name": f"rank {number} ({rank.header.host})"}
    yield {"ph": "M", "name": "process_name", "pid": number, "args": name}
    for event in _events(rank):
        yield {
            "ph": "X",
            "name": event["call"],
            "cat": event["phase"] or "MPI",
            "pid": number,
            "tid": event["thread"],
            "ts": (event["begin_ns"] - origin) / 1e3,
            "dur": event["ns"] / 1e3,
            "args": {"bytes": event["bytes"], "communicator": event["communicator"]},
        }


def write_otf2(directory: Path, output: Path) -> int:
    """Write the recorded events as an OTF2 archive into a new directory and return their number."""
    try:
        import otf2
    except ImportError:
        raise TrafficError("OTF2 requires the package otf2", "install otf2 from PyPI") from None
    if output.exists():
        raise TrafficError(f"output {output}: exists", "choose a new directory")
    headers = world(directory).headers
    _require_events(directory, headers)
    count = 0
    with otf2.writer.open(str(output), timer_resolution=1_000_000_000) as archive:
        definitions = archive.definitions
        root = definitions.system_tree_node("profile")
        payload = definitions.attribute("bytes", "payload of the call", otf2.Type.UINT64)
        hosts: dict[str, Any] = {}
        regions: dict[str, Any] = {}
        for header in headers:
            if header.host not in hosts:
                hosts[header.host] = definitions.system_tree_node(header.host, class_name="node", parent=root)
            group = definitions.location_group(f"rank {header.rank}", system_tree_parent=hosts[header.host])
            writers: dict[int, Any] = {}
            for event in _events(files.read(header.path)):
                name, thread = event["call"], event["thread"]
                if name not in regions:
                    regions[name] = definitions.region(name, paradigm=otf2.Paradigm.MPI)
                if thread not in writers:
                    writers[thread] = archive.event_writer(f"thread {thread}", group=group)
                writers[thread].enter(event["begin_ns"], regions[name], attributes={payload: event["bytes"]})
                writers[thread].leave(event["begin_ns"] + event["ns"], regions[name])
                count += 1
    return count


def _events(rank: files.RankFile) -> Iterator[Row]:
    """Yield a rank's events in the order of their begin, in nanoseconds since the epoch."""
    header = rank.header
    events = rank.of_kind(files.EVENT)
    labels = {number: label(each, header.size) for number, each in rank.communicators.items()}
    for event in events[np.argsort(events["v"][:, 0], kind="stable")]:
        yield {
            "call": rank.calls.get(int(event["a"]), "MPI"),
            "communicator": labels.get(int(event["b"]), ""),
            "phase": rank.phases.get(int(event["phase"]), ""),
            "thread": int(event["thread"]),
            "begin_ns": header.first_epoch_ns + round((int(event["v"][0]) - header.first_tick) * header.tick_ns),
            "ns": round(int(event["v"][1]) * header.tick_ns),
            "bytes": int(event["v"][2]),
        }


def _require_events(directory: Path, headers: Sequence[Header]) -> None:
    """Raise ``TrafficError`` if no rank recorded events, before an existing file is opened for writing."""
    if not any(len(files.read(header.path).of_kind(files.EVENT)) for header in headers):
        raise TrafficError(f"profile {directory}: no events", "record with --events NUMBER")
