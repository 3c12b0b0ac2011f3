"""The profile as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpitraffic.files import CHANNELS
from mpitraffic.profile import Matrix, Profile, call_rows

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
#: Rows of each table, and the width of the matrix.
MOST_ROWS, MOST_COLUMNS = 15, 16


def summary(profile: Profile) -> str:
    """Return the slow ranks, the table of calls and the use of the machine."""
    return "\n".join(_summary(profile))


def matrix(profile: Profile) -> str:
    """Return who sent how many bytes to whom, as a table of ranks and one of hosts."""
    names = [
        str(first) if profile.bin_width == 1 else f"{first}-{min(first + profile.bin_width, profile.size) - 1}"
        for first in range(0, profile.size, profile.bin_width)
    ]
    total = profile.bytes.sum(axis=0)
    lines = ["Bytes sent (rows) and received (columns) by rank:", *_table(total, names)]
    if len(profile.hosts) > 1:
        lines += ["", "By host:", *_table(profile.host_bytes, profile.hosts)]
    return "\n".join(lines)


def _summary(profile: Profile) -> Iterator[str]:
    wall = max((each.wall_ns for each in profile.ranks), default=0.0)
    mpi = sum(each.mpi_ns for each in profile.ranks)
    waiting = sum(each.wait_ns for each in profile.ranks)
    whole = sum(each.wall_ns for each in profile.ranks) or 1.0
    yield f"{profile.command}"
    yield f"{profile.size} ranks on {len(profile.hosts)} hosts, {profile.library}, {wall / 1e9:.3f} s"
    yield f"MPI {mpi / whole:.1%} of the time; waiting for other ranks {waiting / whole:.1%} ({profile.waiting})"
    if profile.missing:
        yield f"no file of {len(profile.missing)} ranks: {', '.join(map(str, profile.missing[:10]))}"
    unfinished = [each.rank for each in profile.ranks if not each.finalized]
    if unfinished:
        yield f"ended before MPI_Finalize: ranks {', '.join(map(str, unfinished[:10]))}"
    for name, count in profile.lost.items():
        if count:
            yield f"not recorded for lack of space: {name}"
    for slow in profile.slow_ranks():
        where = f" in phase {slow.phase}" if slow.phase else ""
        yield (
            f"rank {slow.rank} ({slow.host}) is slow{where}: {slow.excess_ns / 1e9:.3f} s longer outside MPI than the "
            f"median ({slow.share:.1%} of the time)"
        )
    yield ""
    head = ("call", "communicator", "phase", "bytes per call", "calls", "bytes", "seconds", "waiting")
    rows = [
        (
            str(row["call"]),
            str(row["communicator"]),
            str(row["phase"]),
            f"{amount(row['bytes_from'])}-" if row["bytes_from"] else "0",
            f"{row['count']}",
            amount(row["bytes"]),
            f"{row['seconds']:.4f}",
            f"{row['waiting_seconds']:.4f}",
        )
        for row in call_rows(profile)[:MOST_ROWS]
    ]
    yield from _columns([head, *rows])
    if profile.phases:
        yield ""
        phases = [
            (name, str(each.entries), *(f"{ns / 1e9:.3f}" for ns in (each.ns, each.cpu_ns, each.mpi_ns)))
            for name, each in profile.phases.items()
        ]
        yield from _columns([("phase", "entries", "seconds", "CPU seconds", "MPI seconds"), *phases])
    yield ""
    head_of_ranks = (
        "rank",
        "host",
        "seconds",
        "MPI",
        "waiting",
        "sent",
        "CPU seconds",
        "memory",
        "switches",
        "faults",
        "read",
    )
    ranks = sorted(profile.ranks, key=lambda each: each.mpi_ns / (each.wall_ns or 1.0))
    shown = ranks if len(ranks) <= MOST_ROWS else ranks[: MOST_ROWS // 2] + ranks[-(MOST_ROWS // 2) :]
    rows_of_ranks = [
        (
            str(each.rank),
            each.host,
            f"{each.wall_ns / 1e9:.3f}",
            f"{each.mpi_ns / (each.wall_ns or 1.0):.1%}",
            f"{each.wait_ns / (each.wall_ns or 1.0):.1%}",
            amount(each.sent),
            f"{(each.usage['user_ns'] + each.usage['system_ns']) / 1e9:.3f}",
            amount(each.usage["most_memory_kb"] * 1024),
            str(each.usage["voluntary_switches"] + each.usage["involuntary_switches"]),
            str(each.usage["major_faults"]),
            amount(each.usage["read_bytes"]),
        )
        for each in shown
    ]
    yield from _columns([head_of_ranks, *rows_of_ranks])
    yield ""
    sums = (
        f"{name} {amount(int(profile.bytes[number].sum()))} in {int(profile.messages[number].sum())} messages"
        for number, name in enumerate(CHANNELS)
    )
    yield "; ".join(sums)


def _table(cells: Matrix, names: list[str]) -> list[str]:
    if len(names) > MOST_COLUMNS:
        width = -(-len(names) // MOST_COLUMNS)
        starts = np.arange(0, len(names), width)
        cells = np.add.reduceat(np.add.reduceat(cells, starts, axis=0), starts, axis=1)
        folded = [names[start : start + width] for start in starts]
        names = [f"{group[0].partition('-')[0]}-{group[-1].rpartition('-')[2]}" for group in folded]
    rows = [(name, *(str(cell) for cell in row)) for name, row in zip(names, cells.tolist(), strict=True)]
    return list(_columns([("", *names), *rows]))


def _columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield aligned rows; numbers are to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.rjust(width) if cell[:1].isdigit() or (row is rows[0] and at) else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def amount(size: float) -> str:
    """Return bytes with a unit, three digits."""
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            return f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError
