"""Merging and exporting profiles: generated files of many ranks, and profiles of real programs."""

from __future__ import annotations

import csv
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from mpitraffic import export, files, profile
from mpitraffic.commandline import main
from mpitraffic.errors import TrafficError

from tests.mpitraffic.conftest import LIBRARY

Completed = subprocess.CompletedProcess[str]
#: A host has so many of the generated ranks.
PER_HOST = 16


def write_rank(
    directory: Path,
    rank: int,
    size: int,
    *,
    finalized: bool = True,
    cut: int | None = None,
    phases: Sequence[tuple[str, str, int, int]] = (),
) -> None:
    """Write the file of a rank that sends its two neighbours, calls a barrier and takes part in an allreduce.

    ``phases`` are names, the names of the phases around them, threads and times in nanoseconds.
    """
    name = f"rank-{rank:06d}-host{rank // PER_HOST}-{rank}.mpitraffic"
    ticks = (0, 0, 1_000_000_000, 1_000, 2_000_001_000, 2_000_001_000)
    numbers = (*(0, 0, 0, 0), *ticks, *(0,) * 13, *(5,) * 13)
    texts = (f"host{rank // PER_HOST}".encode(), b"program", b"generated", b"job")
    header = struct.pack(
        "=8s2I4i2I10Q13Q13Q128s256s256s128s", b"MPITRAF2", 4096, 64, rank, size, rank, 0, finalized, 0, *numbers, *texts
    )
    records = np.zeros(256, files._RECORD)
    rows = [
        (files.COMMUNICATOR, 0, 0, size, 1, (7, rank, 0, 0, 0)),
        (files.NAME, 1, 0, 0, 0, _text("MPI_COMM_WORLD")),
        (files.NAME, 0, 0, 0, 0, _text("MPI_Send")),
        (files.NAME, 0, 1, 0, 0, _text("MPI_Allreduce")),
        (files.CALL, 0, 0, 4, 0, (2, 20, 2000, 900, 0)),
        (files.CALL, 1, 0, 14, 0, (1, 10_000, 1_000 + 10 * rank, 1_000 + 10 * rank, 0)),
        (files.PAIR, 0, 0, (rank + 1) % size, 0, (1, 8, 0, 0, 0)),
        (files.PAIR, 0, 0, (rank - 1) % size, 0, (1, 12, 0, 0, 0)),
    ]
    for at, (kind, a, b, c, phase, values) in enumerate(rows):
        records[at] = (kind, a, b, c, phase, 0, values)
    names = ["", *dict.fromkeys(phase for phase, *_ in phases)]
    for at, phase in enumerate(names[1:], start=len(rows)):
        records[at] = (files.NAME, 2, names.index(phase), 0, 0, 0, _text(phase))
    for at, (phase, outer, thread, time) in enumerate(phases, start=len(rows) + len(names)):
        records[at] = (files.PHASE, 0, names.index(outer), 0, names.index(phase), thread, (1, 0, time, 0, 0))
    data = header.ljust(4096, b"\0") + records.tobytes()
    (directory / name).write_bytes(data[:cut])


def _text(text: str) -> tuple[int, ...]:
    return tuple(struct.unpack("=5Q", text.encode().ljust(40, b"\0")))


def test_all_is_merged(tmp_path: Path) -> None:
    for rank in range(40):
        write_rank(tmp_path, rank, 40)
    found = profile.load(tmp_path)
    assert found.bytes[0].sum() == 40 * 20
    assert found.bytes[0][3].nonzero()[0].tolist() == [2, 4]
    assert found.bytes[1].sum() == 40 * 2 * 10_000 * 39 // 40
    assert found.host_bytes.sum() == found.bytes.sum()
    assert found.host_bytes.shape == (3, 3)
    row = found.calls["MPI_Allreduce", "MPI_COMM_WORLD", 14, ""]
    assert (row.count, row.bytes, row.ranks, row.fastest_ns) == (40, 400_000, 40, 1000)
    assert row.wait_ns == sum(10 * rank for rank in range(40))
    assert found.slow_ranks() == []


def test_larger_worlds_are_merged_in_bins(tmp_path: Path) -> None:
    for rank in range(1100):
        write_rank(tmp_path, rank, 1100)
    found = profile.load(tmp_path)
    assert found.bin_width == 3
    assert found.bytes[0].shape == (367, 367)
    assert found.bytes[0].sum() == 1100 * 20
    assert found.bytes[1].sum() == sum(_sent_of_allreduce(rank, 1100) for rank in range(1100))
    assert main(["show", "--matrix", str(tmp_path)]) == 0


def _sent_of_allreduce(rank: int, size: int) -> int:
    """Return what a rank sends for 10,000 bytes: the others' parts, and its own one to each of them."""
    parts = [10_000 // size + (each < 10_000 % size) for each in range(size)]
    return sum(parts) - parts[rank] + (size - 1) * parts[rank]


@pytest.mark.alone
def test_ten_thousand_files_are_merged_linearly_in_bounded_memory(tmp_path: Path) -> None:
    measured = {}
    for size in (2_500, 10_000):
        directory = tmp_path / str(size)
        directory.mkdir()
        for rank in range(size):
            write_rank(directory, rank, size)
        program = (
            "import resource, sys, time; from pathlib import Path; from mpitraffic import profile\n"
            "before = time.process_time(); profile.load(Path(sys.argv[1]))\n"
            "print(time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, directory],
            env={"PYTHONPATH": str(LIBRARY), "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        measured[size] = [float(each) for each in done.stdout.split()]
    (few_seconds, few_megabytes), (seconds, megabytes) = measured.values()
    assert seconds < 4 * 2.5 * few_seconds
    assert megabytes < few_megabytes + 100


def test_missing_damaged_and_unfinished_ranks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        write_rank(tmp_path, rank, 4, finalized=rank != 2, cut=100 if rank == 3 else None)
    found = profile.load(tmp_path)
    assert (found.missing, found.damaged) == ([3], 1)
    assert main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "no file of 1 ranks: 3" in shown
    assert "ended before MPI_Finalize: ranks 2" in shown


def test_a_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    for cut in (4096, 4096 + 64 * 7 + 13):
        write_rank(tmp_path, 0, 1, cut=cut)
        assert len(files.read(next(files.rank_files(tmp_path))).records) == (cut - 4096) // 64


def test_a_rank_in_two_files_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rank(tmp_path, 0, 2)
    (second,) = files.rank_files(tmp_path)
    second.with_name("rank-000000-again.mpitraffic").write_bytes(second.read_bytes())
    assert main(["show", str(tmp_path)]) == 1
    assert "rank 0 twice" in capsys.readouterr().err


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="no file of a rank"):
        profile.load(tmp_path)
    with pytest.raises(TrafficError, match="not found"):
        profile.load(tmp_path / "absent")


def test_tables_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p").mkdir()
    for rank in range(3):
        write_rank(tmp_path / "p", rank, 3)
    assert main(["show", "--json", str(tmp_path / "p")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["matrix"]["bytes"]["point-to-point"] == [[0, 8, 12], [12, 0, 8], [8, 12, 0]]
    for form in export.TABLES:
        assert main(["export", str(tmp_path / "p"), str(tmp_path / f"{form}.csv"), "--as", form]) == 0
    rows = list(csv.DictReader((tmp_path / "pairs.csv").open()))
    sums = {name: sum(int(row["bytes"]) for row in rows if row["channel"] == name) for name in files.CHANNELS}
    assert sums == {"point-to-point": 60, "collective": 2 * 10_000 * 2, "one-sided": 0}
    assert [row["sent_bytes"] for row in csv.DictReader((tmp_path / "ranks.csv").open())]
    assert main(["export", str(tmp_path / "p"), str(tmp_path / "t.json"), "--as", "trace"]) == 1
    assert not (tmp_path / "t.json").exists()
    (tmp_path / "t.json").write_text("another trace")
    assert main(["export", str(tmp_path / "p"), str(tmp_path / "t.json"), "--as", "trace"]) == 1
    assert (tmp_path / "t.json").read_text() == "another trace"


@pytest.mark.alone
@pytest.mark.parametrize("stack", ["mpi", "openmpi"])
def test_a_rank_that_sleeps_a_fifth_of_each_step_is_named(
    record: Callable[..., Completed], tmp_path: Path, stack: str
) -> None:
    done = record(stack, 4, tmp_path, "lives.py", "sleeps")
    assert done.returncode == 0, done.stderr
    slow = profile.load(tmp_path).slow_ranks()
    assert slow[0].rank == 1
    assert {each.rank for each in slow if each.phase == "step"} == {1}


@pytest.mark.alone
def test_a_rank_that_is_slow_in_one_phase_is_named_with_it(record: Callable[..., Completed], tmp_path: Path) -> None:
    done = record("mpi", 2, tmp_path, "lives.py", "busy")
    assert done.returncode == 0, done.stderr
    assert [(each.rank, each.phase) for each in profile.load(tmp_path).slow_ranks() if each.phase] == [(1, "backward")]


@pytest.mark.alone
def test_steps_count_without_preparation_and_exchange(record: Callable[..., Completed], tmp_path: Path) -> None:
    done = record("mpi", 2, tmp_path, "lives.py", "steps")
    assert done.returncode == 0, done.stderr
    found = profile.load(tmp_path)
    assert [(each.rank, each.phase) for each in sorted(found.slow_ranks(), key=lambda each: each.phase)] == [
        (1, ""),
        (1, "backward"),
        (1, "step"),
    ]
    for rank in found.ranks:
        step, inner = rank.phases["step"], [rank.phases[name] for name in ("forward", "backward", "average")]
        assert [name for name, each in rank.phases.items() if each.top] == ["warmup", "step"]
        assert step.mpi_ns == pytest.approx(sum(each.mpi_ns for each in inner))
        assert step.ns >= sum(each.ns for each in inner)
        assert rank.region.ns == step.ns
        assert rank.region.entries == 10
        assert rank.region.exchange_ns == pytest.approx(3e8 if rank.rank == 0 else 0, abs=1e8)


def test_a_phase_within_another_and_on_its_own_counts_once(tmp_path: Path) -> None:
    phases = [("step", "", 0, 1000), ("input", "step", 0, 200), ("input", "", 0, 50), ("warmup", "", 0, 700)]
    write_rank(tmp_path, 0, 1, phases=[*phases, ("input", "", 1, 900)])  # a thread reads the next batch meanwhile
    (rank,) = profile.load(tmp_path).ranks
    assert rank.region.ns == 1050
    assert rank.phases["input"].ns == 1150


def test_packing_is_never_a_region(tmp_path: Path) -> None:
    """Libraries mark it, also in programs that mark nothing; the recording of rank 1 has phases of the program too."""
    write_rank(tmp_path, 0, 2, phases=[("packing", "", 0, 300), ("packing", "", 1, 200)])
    write_rank(tmp_path, 1, 2, phases=[("step", "", 0, 1000), ("packing", "step", 0, 90), ("packing", "", 0, 5000)])
    unmarked, marked = profile.load(tmp_path).ranks
    assert (unmarked.region.ns, unmarked.region.outside_ns) == (unmarked.wall_ns, unmarked.outside_ns)
    assert unmarked.region.packing_ns == 300
    assert (marked.region.ns, marked.region.packing_ns) == (1000, 90)


def test_communication_within_communication_counts_once(tmp_path: Path) -> None:
    phases = [("step", "", 0, 1000), ("communication", "step", 0, 300), ("average", "communication", 0, 100)]
    write_rank(tmp_path, 0, 1, phases=phases)
    (rank,) = profile.load(tmp_path).ranks
    assert rank.region.exchange_ns == rank.phases["communication"].exchange_ns == 300


@pytest.mark.alone
@pytest.mark.parametrize("barrier", ["", "1"])
def test_waiting_is_measured_by_barriers_or_estimated(
    record: Callable[..., Completed], tmp_path: Path, barrier: str
) -> None:
    done = record("mpi", 2, tmp_path, "lives.py", "sleeps", MPITRAFFIC_BARRIER=barrier)
    assert done.returncode == 0, done.stderr
    found = profile.load(tmp_path)
    assert found.waiting == ("measured" if barrier else "estimated")
    waits = {each.rank: each.wait_ns / 1e9 for each in found.ranks}
    assert waits[0] > waits[1]  # rank 1 sleeps 0.2 s longer


@pytest.mark.real
def test_events_become_a_trace(record: Callable[..., Completed], tmp_path: Path) -> None:
    done = record("mpi", 2, tmp_path / "p", "lives.py", "paused", MPITRAFFIC_EVENTS="9")
    assert done.returncode == 0, done.stderr
    assert export.write_trace(tmp_path / "p", tmp_path / "trace.json") == 18
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    calls = [each for each in events if each["ph"] == "X" and each["pid"] == 0]
    assert [each["cat"] for each in calls] == ["outer"] * 2 + ["inner"] * 3 + ["outer"] * 4
    assert all(one["ts"] + one["dur"] <= two["ts"] for one, two in pairwise(calls))
    assert profile.load(tmp_path / "p").lost["events"] > 0


@pytest.mark.real
@pytest.mark.skipif(find_spec("otf2") is None, reason="otf2 has wheels for Linux on x86_64")
def test_events_become_an_otf2_archive(record: Callable[..., Completed], tmp_path: Path) -> None:
    import otf2

    done = record("mpi", 2, tmp_path / "p", "lives.py", "paused", MPITRAFFIC_EVENTS="20")
    assert done.returncode == 0, done.stderr
    assert main(["export", str(tmp_path / "p"), str(tmp_path / "o"), "--as", "otf2"]) == 0
    with otf2.reader.open(str(tmp_path / "o" / "traces.otf2")) as trace:
        events = [(location.group.name, event) for location, event in trace.events]
    entered = [event for group, event in events if group == "rank 1" and isinstance(event, otf2.events.Enter)]
    assert len(events) == 2 * 2 * len(entered)
    assert {event.region.name.removesuffix("_c") for event in entered} == {"MPI_Sendrecv"}
    assert [list(event.attributes.values()) for event in entered] == [[200]] * 10
    assert main(["export", str(tmp_path / "p"), str(tmp_path / "o"), "--as", "otf2"]) == 1
