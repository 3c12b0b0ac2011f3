"""The profile of a program: the files of all ranks, merged one after the other in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitraffic import files
from mpitraffic.errors import TrafficError
from mpitraffic.files import CHANNELS, Communicator, Header, RankFile

#: Larger worlds are drawn in bins of consecutive ranks.
MOST_BINS = 512
#: Rows of the table of calls; what comes after them is added to one row.
MOST_ROWS = 100_000
#: A rank is slow if it computes longer than the others by this share of the wall time.
SLOW = 0.05
#: Reported slow ranks.
MOST_SLOW = 10
#: Kept histograms of communicators, those that were used last.
MOST_HISTOGRAMS = 256
#: Phases in which a program prepares; the others at the top level are what it is about.
PREPARATION = frozenset({"warmup"})
#: Phases in which ranks exchange data, whether or not by calls of MPI in the same thread.
COMMUNICATION = frozenset({"average", "communication"})
#: Phase in which a rank copies data for an exchange; libraries mark it, also in programs that mark no phases.
PACKING = "packing"
_NO_REGION = PREPARATION | {PACKING}
OTHER = "other"
_ALLREDUCES = ("MPI_Allreduce", "MPI_Iallreduce")
Matrix = npt.NDArray[np.int64]
Key = tuple[str, str, int, str]


@dataclass
class Calls:
    """Calls of one function on one communicator, in one size class and phase.

    ``wait_ns`` was measured by barriers in front of collectives, or is estimated: the time above that of the fastest
    such call of any rank.
    """

    count: int = 0
    bytes: int = 0
    ns: float = 0.0
    fastest_ns: float = float("inf")
    wait_ns: float = 0.0
    ranks: int = 0


@dataclass
class Rank:
    """The calls, times and resources of one rank, in sum.

    ``region`` are the phases that are within no other, without ``PREPARATION`` and ``PACKING``, in sum; the whole
    program if it marks none. If several threads mark some, these are the phases of the thread that is longest in them:
    those of others run beside.
    """

    rank: int
    host: str
    wall_ns: float
    mpi_ns: float
    wait_ns: float
    calls: int
    sent: int
    received: int
    finalized: bool
    usage: dict[str, int]
    region: RankPhase
    phases: dict[str, RankPhase] = field(default_factory=dict)

    @property
    def outside_ns(self) -> float:
        """Time outside MPI: computing, input, or doing nothing."""
        return self.wall_ns - self.mpi_ns


@dataclass
class PhaseTimes:
    """Times in a marked part of the program, which include the phases within it."""

    entries: int = 0
    ns: float = 0.0
    cpu_ns: float = 0.0
    mpi_ns: float = 0.0


@dataclass
class RankPhase(PhaseTimes):
    """The times of one rank in a phase.

    ``wait_ns`` does not include the phases within it. ``exchange_ns`` is time outside MPI in phases of
    ``COMMUNICATION``, whose calls of MPI may be in another thread. ``top`` means that the phase was in no other once.
    ``packing_ns`` is time outside MPI in phases ``PACKING`` within this one, only known for the region of a rank.
    """

    wait_ns: float = 0.0
    exchange_ns: float = 0.0
    top: bool = False
    packing_ns: float = 0.0

    @property
    def outside_ns(self) -> float:
        """Time in which the rank does not exchange data with others."""
        return self.ns - self.mpi_ns - self.exchange_ns


@dataclass(frozen=True)
class Slow:
    """A rank for which the others waited, because it was longer outside MPI than their median."""

    rank: int
    host: str
    phase: str
    phase_ns: float
    excess_ns: float
    share: float


@dataclass
class Profile:
    """The merged profile."""

    size: int
    bin_width: int
    library: str
    command: str
    waiting: str
    hosts: list[str]
    ranks: list[Rank]
    calls: dict[Key, Calls]
    communicators: dict[str, int]
    phases: dict[str, PhaseTimes]
    bytes: Matrix
    messages: Matrix
    host_bytes: Matrix
    host_messages: Matrix
    missing: list[int]
    lost: dict[str, int]
    damaged: int
    other_worlds: int

    def slow_ranks(self) -> list[Slow]:
        """Return the ranks that were longer outside MPI than the median of the others, the slowest first."""
        found = list(self._slow("", {each.rank: each.region.outside_ns for each in self.ranks}))
        for name in self.phases:
            if name not in PREPARATION:
                outside = {each.rank: each.phases[name].outside_ns for each in self.ranks if name in each.phases}
                found += self._slow(name, outside)
        return sorted(found, key=lambda each: (each.phase != "", -each.excess_ns))[:MOST_SLOW]

    def _slow(self, phase: str, outside: dict[int, float]) -> Iterator[Slow]:
        wall = max((each.region.ns for each in self.ranks), default=0.0)
        if len(outside) < 2 or not wall:
            return
        # With two ranks the median of the others is the other one. With more, the median of all differs little from it.
        usual = min(outside.values()) if len(outside) == 2 else median(outside.values())
        ranks = {each.rank: each for each in self.ranks}
        for rank, ns in outside.items():
            if ns - usual > SLOW * wall:
                whole = ranks[rank].phases[phase] if phase else ranks[rank].region
                yield Slow(rank, ranks[rank].host, phase, whole.ns, ns - usual, (ns - usual) / wall)


@dataclass(frozen=True)
class World:
    """The processes of one MPI_COMM_WORLD that wrote into a directory, by rank."""

    headers: list[Header]
    damaged: int
    other_worlds: int


def load(directory: Path) -> Profile:
    """Merge the files of a directory.

    Files are read one at a time, twice: the waiting time is estimated from the fastest call of any rank. If several
    programs wrote into the directory, the one with the most ranks is merged.
    """
    found = world(directory)
    merge = _Merge(found.headers)
    for header in found.headers:
        merge.scan(files.read(header.path))
    for header in found.headers:
        merge.add(files.read(header.path))
    return merge.finish(found)


def world(directory: Path) -> World:
    """Return the largest world of a directory, of equal ones the last."""
    headers, damaged = _headers(directory)
    worlds: dict[tuple[str, int, str], list[Header]] = {}
    for header in headers:
        worlds.setdefault(header.world, []).append(header)
    if not worlds:
        raise TrafficError(f"profile {directory}: no file of a rank", "run the program with the recorder")
    chosen = max(worlds.values(), key=lambda each: (each[0].size, max(one.first_epoch_ns for one in each)))
    chosen.sort(key=lambda each: each.rank)
    for one, next_ in pairwise(chosen):
        if one.rank == next_.rank:
            raise TrafficError(
                f"profile {directory}: rank {one.rank} twice ({one.path.name}, {next_.path.name})",
                "use a new directory for each program",
            )
    return World(chosen, damaged, len(worlds) - 1)


def _headers(directory: Path) -> tuple[list[Header], int]:
    headers, damaged = [], 0
    for path in files.rank_files(directory):
        try:
            headers.append(files.read_header(path))
        except TrafficError:
            damaged += 1
    return headers, damaged


def label(communicator: Communicator | None, size: int) -> str:
    """Return the name of a communicator, the same on all its ranks."""
    if communicator is None:
        return ""
    members = communicator.members
    if len(members) == 1 and not communicator.inter:
        return "self"
    if communicator.name:
        return communicator.name
    kind = "remote group of " if communicator.inter else ""
    if len(members) == size and not communicator.inter:
        return f"all #{communicator.ordinal}"
    return f"{kind}{_ranges(members)} #{communicator.ordinal}"


def _ranges(members: npt.NDArray[np.int64]) -> str:
    """Return ranks in short: 0,2,4-7; long lists end with the number of members."""
    parts: list[list[int]] = []
    for rank in members.tolist():
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in parts[:4]]
    return ",".join(shown) + (f",... ({len(members)} ranks)" if len(parts) > 4 else "")


def _allreduces(file: RankFile) -> Iterator[np.void]:
    """Yield the calls of allreduce, whose traffic has no records of its own."""
    numbers = [number for number, name in file.calls.items() if name.removesuffix("_c") in _ALLREDUCES]
    calls = file.of_kind(files.CALL)
    yield from calls[np.isin(calls["a"], numbers)]


class _Merge:
    """The sums so far. Sizes depend on the number of bins, hosts and rows, and for each rank on one summary."""

    def __init__(self, headers: list[Header]) -> None:
        self.size = headers[0].size
        self.width = -(-self.size // MOST_BINS)
        bins = -(-self.size // self.width)
        self.bytes = np.zeros((len(CHANNELS), bins, bins), np.int64)
        self.messages = np.zeros_like(self.bytes)
        self.received_bytes = np.zeros((bins, bins), np.int64)
        self.received_messages = np.zeros_like(self.received_bytes)
        host_of = {each.rank: each.host for each in headers}
        self.hosts = sorted(set(host_of.values()))
        self.folded_hosts = -(-len(self.hosts) // MOST_BINS)
        places = {host: number // self.folded_hosts for number, host in enumerate(self.hosts)}
        # A rank without a file is on no known host.
        self.host_of = np.array([places.get(host_of.get(rank, ""), -1) for rank in range(self.size)])
        count = max(places.values()) + 1
        self.host_bytes = np.zeros((count, count), np.int64)
        self.host_messages = np.zeros_like(self.host_bytes)
        self.histograms: dict[tuple[int, int, bool, int], tuple[Matrix, Matrix, int]] = {}
        self.headers = headers
        self.present = {each.rank for each in headers}
        self.fastest: dict[Key, float] = {}
        self.calls: dict[Key, Calls] = {}
        self.communicators: dict[str, int] = {}
        self.phases: dict[str, PhaseTimes] = {}
        self.ranks: list[Rank] = []

    def _keys(self, file: RankFile) -> Iterator[tuple[Key, np.void]]:
        labels = {number: label(each, self.size) for number, each in file.communicators.items()}
        for record in file.of_kind(files.CALL):
            call = file.calls.get(int(record["a"]), OTHER)
            phase = file.phases.get(int(record["phase"]), OTHER)
            key = (call, labels.get(int(record["b"]), ""), int(record["c"]), phase)
            if key not in self.fastest and len(self.fastest) >= MOST_ROWS:
                key = (OTHER, "", 0, "")
            yield key, record

    def scan(self, file: RankFile) -> None:
        """Find the fastest call of each kind."""
        for key, record in self._keys(file):
            fastest = float(record["v"][3]) * file.header.tick_ns
            self.fastest[key] = min(self.fastest.get(key, fastest), fastest)

    def add(self, file: RankFile) -> None:
        """Add the calls and the traffic of a rank."""
        header = file.header
        mpi = waited = 0.0
        count = 0
        phases: dict[str, RankPhase] = {}
        seen: set[Key] = set()
        for communicator in file.communicators.values():
            name = label(communicator, self.size)
            if name in self.communicators or len(self.communicators) < MOST_ROWS:
                self.communicators[name] = len(communicator.members)
        for key, record in self._keys(file):
            calls, size, ticks, _, barrier = (int(each) for each in record["v"])
            row = self.calls.setdefault(key, Calls())
            ns = ticks * header.tick_ns
            wait = barrier * header.tick_ns if barrier else max(ns - calls * self.fastest[key], 0.0)
            row.count += calls
            row.bytes += size
            row.ns += ns
            row.fastest_ns = self.fastest[key]
            row.wait_ns += wait
            row.ranks += key not in seen
            seen.add(key)
            mpi, waited, count = mpi + ns, waited + wait, count + calls
            if key[3]:
                phases.setdefault(key[3], RankPhase()).wait_ns += wait
        program = RankPhase(1, float(header.wall_ns), header.usage["user_ns"], mpi, waited)
        region = self._add_phases(file, phases, program)
        sent, received = self._traffic(file)
        self.ranks.append(
            Rank(
                header.rank,
                header.host,
                float(header.wall_ns),
                mpi,
                waited,
                count,
                sent,
                received,
                header.finalized,
                header.usage,
                region,
                {name: each for name, each in phases.items() if each.entries},
            )
        )

    def _add_phases(self, file: RankFile, phases: dict[str, RankPhase], program: RankPhase) -> RankPhase:
        """Add the times of a rank's phases to ``phases``, and return its region, which may be the whole ``program``."""
        tick, around = file.header.tick_ns, dict[str, str]()
        outermost: dict[int, RankPhase] = {}  # by thread
        exchanges: list[tuple[str, int, float]] = []
        # By thread, and whether it is within another phase; outside phases of communication.
        packing: dict[tuple[int, bool], float] = {}
        for record in file.of_kind(files.PHASE):
            name, outer = file.phases.get(int(record["phase"]), OTHER), file.phases.get(int(record["b"]), OTHER)
            thread, is_outermost = int(record["thread"]), not outer and name not in _NO_REGION
            entries, cpu, inside, _, in_mpi = (int(each) for each in record["v"])
            of_rank = phases.setdefault(name, RankPhase())
            of_rank.top = of_rank.top or not outer
            around[name] = outer
            sums = [self.phases.setdefault(name, PhaseTimes()), of_rank]
            for phase in (*sums, *([outermost.setdefault(thread, RankPhase())] if is_outermost else [])):
                phase.entries += entries
                phase.cpu_ns += cpu
                phase.ns += inside * tick
                phase.mpi_ns += in_mpi * tick
            if name == PACKING and outer not in COMMUNICATION | PREPARATION:
                key = thread, bool(outer)
                packing[key] = packing.get(key, 0.0) + (inside - in_mpi) * tick
            if name in COMMUNICATION:
                exchange = (inside - in_mpi) * tick
                of_rank.exchange_ns += exchange
                if is_outermost:
                    outermost[thread].exchange_ns += exchange
                exchanges.append((outer, thread, exchange))
        for outer, thread, exchange in exchanges:
            name, passed = outer, set[str]()
            # A phase of communication around another one includes it already.
            while name in phases and name not in passed | COMMUNICATION:
                phases[name].exchange_ns += exchange
                passed.add(name)
                if not around.get(name) and name not in _NO_REGION and thread in outermost:
                    outermost[thread].exchange_ns += exchange
                name = around.get(name, "")
        longest = max(outermost, key=lambda each: outermost[each].ns, default=None)
        if longest is None:
            program.packing_ns = max(packing.values(), default=0.0)
            return program
        region = outermost[longest]
        region.packing_ns = packing.get((longest, True), 0.0)
        region.wait_ns = sum(each.wait_ns for name, each in phases.items() if name not in PREPARATION)
        return region

    def _traffic(self, file: RankFile) -> tuple[int, int]:
        me, sent, received = file.header.rank, 0, 0
        for record in file.of_kind(files.PAIR):
            channel, peer = int(record["a"]), int(record["c"])
            count, size = int(record["v"][0]), int(record["v"][1])
            if peer == files.NO_PEER:
                continue
            if channel & files.RECEIVED:
                at = peer // self.width, me // self.width
                self.received_bytes[at] += size
                self.received_messages[at] += count
                received += size
                if peer not in self.present:  # nothing is left of the sender: its receivers say what it sent
                    self._exchange(channel & 3, peer, me, count, size)
            elif channel & files.FETCHED:
                self._exchange(channel & 3, peer, me, count, size)
                received += size
            else:
                self._exchange(channel, me, peer, count, size)
                sent += size
        shared: dict[int, list[int]] = {}  # of a communicator; the sum is divided among its members
        for record in (*file.of_kind(files.SHARED), *_allreduces(file)):
            total = shared.setdefault(int(record["b"]), [0, 0])
            total[0] += int(record["v"][0])
            total[1] += int(record["v"][1])
        each = [(int(one["b"]), int(one["v"][0]), int(one["v"][1]), False) for one in file.of_kind(files.EACH)]
        each += [(number, count, size, True) for number, (count, size) in shared.items()]
        for number, count, size, is_shared in each:
            communicator = file.communicators.get(number)
            if communicator is not None:
                sent += self._spread(me, communicator, count, size, is_shared and not communicator.inter)
        return sent, received

    def _exchange(self, channel: int, source: int, target: int, count: int, size: int) -> None:
        at = channel, source // self.width, target // self.width
        self.bytes[at] += size
        self.messages[at] += count
        hosts = self.host_of[source], self.host_of[target]
        if min(hosts) >= 0:
            self.host_bytes[hosts] += size
            self.host_messages[hosts] += count

    def _spread(self, me: int, communicator: Communicator, count: int, size: int, shared: bool) -> int:
        """Add bytes for each other member, or those of a reduction, of which each member gets and returns a part.

        The work depends on the number of bins, not on that of the members.
        """
        members = communicator.members
        bins, hosts, reached = self._histogram(communicator, len(members))
        each, rest = size, 0
        if shared:
            part, rest = divmod(size, max(len(members), 1))
            each = 2 * part + (communicator.me < rest)
            count *= 2
        more_bins, more_hosts, _ = self._histogram(communicator, rest)
        row, mine = me // self.width, self.host_of[me]
        self.bytes[1, row] += each * bins + more_bins
        self.messages[1, row] += count * bins
        self.host_bytes[mine] += each * hosts + more_hosts
        self.host_messages[mine] += count * hosts
        sent = each * reached + rest
        if not communicator.inter:  # nothing goes to the rank itself
            own = each + (communicator.me < rest)
            self.bytes[1, row, row] -= own
            self.messages[1, row, row] -= count
            self.host_bytes[mine, mine] -= own
            self.host_messages[mine, mine] -= count
            sent -= own
        return int(sent)

    def _histogram(self, communicator: Communicator, first: int) -> tuple[Matrix, Matrix, int]:
        """Return how many of the first members are in each bin and on each host, and how many are in this world."""
        key = communicator.hash, communicator.ordinal, communicator.inter, first
        found = self.histograms.pop(key, None)
        if found is None:
            members = communicator.members[:first]
            members = members[members >= 0]
            hosts = self.host_of[members]
            found = (
                np.bincount(members // self.width, minlength=self.bytes.shape[1]),
                np.bincount(hosts[hosts >= 0], minlength=len(self.host_bytes)),
                len(members),
            )
            if len(self.histograms) >= MOST_HISTOGRAMS:
                del self.histograms[next(iter(self.histograms))]
        self.histograms[key] = found
        return found

    def finish(self, found: World) -> Profile:
        """Return the profile."""
        first = self.headers[0]
        hosts = self.hosts[:: self.folded_hosts]
        return Profile(
            size=self.size,
            bin_width=self.width,
            library=first.library,
            command=first.command,
            waiting="measured" if first.waits_for_all else "estimated",
            hosts=hosts,
            ranks=self.ranks,
            calls=self.calls,
            communicators=self.communicators,
            phases=self.phases,
            bytes=self.bytes,
            messages=self.messages,
            host_bytes=self.host_bytes,
            host_messages=self.host_messages,
            missing=sorted(set(range(self.size)) - self.present),
            lost={name: sum(each.lost[name] for each in self.headers) for name in first.lost},
            damaged=found.damaged,
            other_worlds=found.other_worlds,
        )


def as_document(profile: Profile) -> dict[str, Any]:
    """Return the profile as JSON has it; times are in seconds."""
    return {
        "format": 1,
        "ranks": profile.size,
        "library": profile.library,
        "command": profile.command,
        "waiting": profile.waiting,
        "missing_ranks": profile.missing,
        "lost": profile.lost,
        "damaged_files": profile.damaged,
        "calls": call_rows(profile),
        "by_rank": [
            {**row, "phases": {name: _phase_row(phase) for name, phase in each.phases.items()}}
            for row, each in zip(rank_rows(profile.ranks), profile.ranks, strict=True)
        ],
        "communicators": profile.communicators,
        "phases": {name: _phase_row(phase) for name, phase in profile.phases.items()},
        "slow_ranks": [
            {
                "rank": each.rank,
                "host": each.host,
                "phase": each.phase,
                "phase_seconds": each.phase_ns / 1e9,
                "excess_seconds": each.excess_ns / 1e9,
                "share": each.share,
            }
            for each in profile.slow_ranks()
        ],
        "matrix": {
            "ranks_per_cell": profile.bin_width,
            "bytes": {name: profile.bytes[number].tolist() for number, name in enumerate(CHANNELS)},
            "messages": {name: profile.messages[number].tolist() for number, name in enumerate(CHANNELS)},
        },
        "hosts": {
            "names": profile.hosts,
            "bytes": profile.host_bytes.tolist(),
            "messages": profile.host_messages.tolist(),
        },
    }


def _phase_row(phase: PhaseTimes) -> dict[str, Any]:
    return {
        "entries": phase.entries,
        "seconds": phase.ns / 1e9,
        "cpu_seconds": phase.cpu_ns / 1e9,
        "mpi_seconds": phase.mpi_ns / 1e9,
    }


def call_rows(profile: Profile) -> list[dict[str, Any]]:
    """Return the table of calls, the longest first."""
    ordered = sorted(profile.calls.items(), key=lambda each: -each[1].ns)
    return [
        {
            "call": call,
            "communicator": communicator,
            "phase": phase,
            "bytes_from": 0 if not size_class else 1 << (size_class - 1),
            "bytes_below": 1 if not size_class else 1 << size_class,
            "ranks": row.ranks,
            "count": row.count,
            "bytes": row.bytes,
            "seconds": row.ns / 1e9,
            "fastest_seconds": row.fastest_ns / 1e9,
            "waiting_seconds": row.wait_ns / 1e9,
        }
        for (call, communicator, size_class, phase), row in ordered
    ]


def rank_rows(ranks: Iterable[Rank]) -> list[dict[str, Any]]:
    """Return one row for each rank."""
    return [
        {
            "rank": each.rank,
            "host": each.host,
            "finalized": each.finalized,
            "wall_seconds": each.wall_ns / 1e9,
            "mpi_seconds": each.mpi_ns / 1e9,
            "waiting_seconds": each.wait_ns / 1e9,
            "calls": each.calls,
            "sent_bytes": each.sent,
            "received_bytes": each.received,
            **each.usage,
        }
        for each in ranks
    ]
