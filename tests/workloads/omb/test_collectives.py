"""Every collective on real ranks of MPICH and of Open MPI: right data, OMB's table, and exactly OMB's calls."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hidl_cli.runs.parsers.omb import parse
from hidl_workloads.omb.collectives import BENCHMARKS
from tests.workloads import ranks
from tests.workloads.omb.calls import Call, Section, count

pytestmark = pytest.mark.real

NAMES = [benchmark.name for benchmark in BENCHMARKS]
WITH_DATA = [name for name in NAMES if "barrier" not in name]

# OMB 7.4's programs below c/mpi/collective, without osu_.
BLOCKING = [
    *("allgather", "allgatherv", "allreduce", "alltoall", "alltoallv", "alltoallw", "barrier", "bcast", "gather"),
    *("gatherv", "reduce", "reduce_scatter", "reduce_scatter_block", "scatter", "scatterv"),
]
NEIGHBORHOOD = [f"neighbor_{name}" for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")]

TIMED, WARMUP, UNTIMED = 2, 1, 1
SIZES = (32, 64)


@dataclass(frozen=True)
class Told:
    """What one benchmark ended with and said, and the calls of each rank."""

    status: int
    output: str
    errors: str
    calls: tuple[Section, ...]


@dataclass(frozen=True)
class Ran:
    """A run of many benchmarks: with -c, and without."""

    ranks: int
    validated: dict[str, Told]
    plain: dict[str, Told]
    others: dict[str, Told]


OTHERS = {
    "in place": ["allreduce", "-l", "-c", "-m", "64:64", "-i", "2", "-x", "0"],
    "each is root": ["gather", "-k", "rotate", "-c", "-m", "64:64", "-i", "4", "-x", "0"],
    "in place at a root": ["scatter", "-l", "-k", "fixed:1", "-c", "-m", "64:64", "-i", "2", "-x", "0"],
    "pickled": ["alltoall", "--buffer", "pickle", "-c", "-m", "64:64", "-i", "2", "-x", "0"],
    "bytearray": ["reduce", "--buffer", "bytearray", "-c", "-m", "64:64", "-i", "2", "-x", "0"],
    "full": ["allgather", "-f", "-c", "-z50,99", "-T", "mpi_float", "-m", "64:64", "-i", "5", "-x", "0"],
    "full overlap": ["ibcast", "-f", "-t", "3", "-m", "64:64", "-i", "5", "-x", "0"],
    "memory": ["allgather", "-M", "1048576", "-m", "131072:1048576", "-i", "1", "-x", "0"],
    "no such root": ["bcast", "-k", "fixed:9"],
    "rotating persistent root": ["bcast_persistent", "-k", "rotate"],
    "pickled vectors": ["allgatherv", "--buffer", "pickle"],
    "too small a grid": ["neighbor_allgather", "-N", "cart:1:4"],
}


def ring(directory: Path, number: int) -> str:
    """A graph as -N takes it: each rank sends to the next, and rank 0 to rank 1 twice."""
    file = directory / "ring.csv"
    edges = [(rank, (rank + 1) % number) for rank in range(number)] + [(0, 1)]
    file.write_text("# from,to\n" + "".join(f"{start},{end}\n" for start, end in edges), encoding="utf-8")
    return f"graph:{file}"


@pytest.fixture(scope="module", params=[2, 4])
def ran(request: pytest.FixtureRequest, wheels: Path, counter: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    number = request.param
    directory = tmp_path_factory.mktemp("collectives")
    neighbors = ["-N", ring(directory, number)]
    times = ["-i", str(TIMED), "-x", str(WARMUP)]
    plain = [[name, *times, *(["-m", "32:64"] + neighbors * ("neighbor" in name))] for name in NAMES]
    validated = [
        [name, *times, "-c", "-u", str(UNTIMED), "-T", "mpi_char,mpi_float", "-m", "64:64"]
        + neighbors * ("neighbor" in name)
        for name in WITH_DATA
    ]
    words = [*plain, *validated, *OTHERS.values()]
    program = ranks.PROGRAMS / "runs_benchmarks.py"
    counted = count(counter, wheels, number, program, json.dumps(words), directory=directory / "counts")
    told = [
        Told(*one, tuple(rank.get(section, Counter()) for rank in counted.ranks))
        for section, one in enumerate(json.loads(counted.completed.stdout.splitlines()[-1]), start=1)
    ]
    after = len(NAMES) + len(WITH_DATA)
    return Ran(
        number,
        validated=dict(zip(WITH_DATA, told[len(NAMES) : after], strict=True)),
        plain=dict(zip(NAMES, told[: len(NAMES)], strict=True)),
        others=dict(zip(OTHERS, told[after:], strict=True)),
    )


def test_all_of_omb_s_collectives_are_there() -> None:
    blocking = BLOCKING + NEIGHBORHOOD
    persistent = [f"{name}_persistent" for name in BLOCKING if name != "reduce_scatter_block"]
    assert sorted(NAMES) == sorted([*blocking, *(f"i{name}" for name in blocking), *persistent])


@pytest.mark.parametrize("name", WITH_DATA)
def test_the_data_are_right(ran: Ran, name: str) -> None:
    rows = re.findall(r"^64 .*\s(Pass|Fail)$", ran.validated[name].output, re.MULTILINE)
    assert (ran.validated[name].status, rows) == (0, ["Pass", "Pass"]), ran.validated[name]


OVERLAP = {"overall", "compute", "pure_communication", "overlap"}
Bytes = Callable[[int, int, int], tuple[int, int]]


@pytest.mark.parametrize("name", NAMES)
def test_omb_s_parser_reads_the_table(ran: Ran, name: str) -> None:
    metrics = parse(ran.plain[name].output)
    first = next(iter(metrics.values()))
    assert metrics.keys() == ({"latency"} if name == bare(name) or "persistent" in name else OVERLAP)
    assert first.get("sizes") == (None if "barrier" in name else list(SIZES))


# Bytes that a rank sends and receives in one call, by the number of ranks, the rank and the message's size. In the
# neighbourhood of ``ring``, rank 0 has one more to send to and rank 1 one more to receive from. The forms with counts
# for each rank (v, w) send as much.
BYTES: dict[str, Bytes] = {
    "allgather": lambda n, rank, m: (m, n * m),
    "allreduce": lambda n, rank, m: (m, m),
    "alltoall": lambda n, rank, m: (n * m, n * m),
    "barrier": lambda n, rank, m: (0, 0),
    "bcast": lambda n, rank, m: (m * (rank == 0), m * (rank != 0)),
    "gather": lambda n, rank, m: (m, n * m * (rank == 0)),
    "reduce": lambda n, rank, m: (m, m * (rank == 0)),
    "reduce_scatter": lambda n, rank, m: (m, m // n),
    "reduce_scatter_block": lambda n, rank, m: (m, m // n),
    "scatter": lambda n, rank, m: (n * m * (rank == 0), m),
    "neighbor_allgather": lambda n, rank, m: (m, m * (1 + (rank == 1))),
    "neighbor_alltoall": lambda n, rank, m: (m * (1 + (rank == 0)), m * (1 + (rank == 1))),
}


def bare(name: str) -> str:
    """The blocking collective that a benchmark's name comes from."""
    name = name.removesuffix("_persistent")
    return name if name in BLOCKING + NEIGHBORHOOD else name.removeprefix("i")


def expected(name: str, n: int, rank: int) -> Section:
    """The calls of OMB's program osu_NAME for ``SIZES``, of those that carry its data."""
    collective = bare(name)
    of_one = BYTES.get(collective) or BYTES[collective.rstrip("vw")]
    function = f"MPI_{collective.capitalize()}"
    section: Section = Counter()
    for size in SIZES if collective != "barrier" else (0,):
        sent, received = of_one(n, rank, size)
        if name.endswith("_persistent"):
            # One more of a barrier asks whether the library has persistent collectives at all.
            section[Call(f"{function}_init", sent, received)] += 2 if collective == "barrier" else 1
            section[Call(f"MPI_Start of {function}", sent, received)] += TIMED + WARMUP
        elif name != collective:
            section[Call(f"MPI_I{collective}", sent, received)] += 2 * (TIMED + WARMUP)  # alone, and with computation
        else:
            section[Call(function, sent, received)] += TIMED + WARMUP
    return section


@pytest.mark.parametrize("name", [name for name in NAMES if name != "barrier"])
def test_it_calls_what_omb_calls_as_often_and_with_as_many_bytes(ran: Ran, name: str) -> None:
    # What goes on around any benchmark (agreeing on buffers, reducing times) shows in that of the barrier.
    around = ran.plain["barrier"].calls
    functions = {call.function for call in expected(name, ran.ranks, 0)}
    made = [
        Counter({call: n for call, n in calls.items() if call.function in functions and call not in around[rank]})
        for rank, calls in enumerate(ran.plain[name].calls)
    ]
    assert made == [expected(name, ran.ranks, rank) for rank in range(ran.ranks)]


def test_a_barrier_is_called_once_for_each_iteration_and_before_and_after(ran: Ran) -> None:
    made = [calls[Call("MPI_Barrier")] for calls in ran.plain["barrier"].calls]
    assert made == [TIMED + WARMUP + 2] * ran.ranks


def test_with_validation_each_iteration_makes_its_untimed_calls_too(ran: Ran) -> None:
    datatypes = 2
    made = [calls[Call("MPI_Allreduce", 64, 64)] for calls in ran.validated["allreduce"].calls]
    assert made == [datatypes * (TIMED + WARMUP) * (1 + UNTIMED)] * ran.ranks


def test_every_test_call_that_was_asked_for_is_made(ran: Ran) -> None:
    assert [calls[Call("MPI_Test")] for calls in ran.others["full overlap"].calls] == [3 * 5] * ran.ranks


@pytest.mark.parametrize("which", ["in place", "each is root", "in place at a root", "pickled", "bytearray"])
def test_other_forms_bring_the_right_data_too(ran: Ran, which: str) -> None:
    told = ran.others[which]
    assert (told.status, told.output.split()[-1]) == (0, "Pass"), told


def test_a_rotating_root_receives_on_each_rank_in_turn(ran: Ran) -> None:
    received = [
        sum(n for call, n in calls.items() if call.function == "MPI_Gather" and call.received == 64 * ran.ranks)
        for calls in ran.others["each is root"].calls
    ]
    each_iteration = 1 + 5  # timed, and the five of -c that are not
    assert received == [4 // ran.ranks * each_iteration] * ran.ranks


def header(told: Told) -> list[str]:
    """The column titles of the table."""
    (line,) = [line for line in told.output.splitlines() if line.startswith(("# Size", "# Avg"))]
    return re.split(r"\s{2,}", line)


def test_full_output_has_omb_s_columns(ran: Ran) -> None:
    assert header(ran.others["full"]) == [
        "# Size",
        "Avg Latency(us)",
        "Min Latency(us)",
        "Max Latency(us)",
        "Iterations",
        "Validation",
        "P50 Tail Lat(us)",
        "P99 Tail Lat(us)",
    ]


def test_the_mean_over_the_ranks_lies_between_least_and_most(ran: Ran) -> None:
    mean, least, most, iterations = map(float, ran.others["full"].output.splitlines()[-1].split()[1:5])
    assert least <= mean <= most
    assert iterations == 5


def test_full_overlap_has_omb_s_columns(ran: Ran) -> None:
    assert header(ran.others["full overlap"]) == [
        "# Size",
        "Overall(us)",
        "Compute(us)",
        "Coll. Init(us)",
        "MPI_Test(us)",
        "MPI_Wait(us)",
        "Pure Comm.(us)",
        "Min Comm.(us)",
        "Max Comm.(us)",
        "Overlap(%)",
    ]


def test_the_computation_lasts_at_least_as_long_as_the_communication_alone(ran: Ran) -> None:
    figures = list(map(float, ran.others["full overlap"].output.splitlines()[-1].split()))
    overall, compute, pure = figures[1], figures[2], figures[6]
    assert pure <= compute * 1.001 <= overall * 1.001


def test_the_parts_of_the_overall_time_make_up_the_whole(ran: Ran) -> None:
    figures = list(map(float, ran.others["full overlap"].output.splitlines()[-1].split()))
    overall, parts = figures[1], figures[2:6]
    assert sum(parts) == pytest.approx(overall, abs=0.05)


def test_the_memory_limit_ends_the_table(ran: Ran) -> None:
    told = ran.others["memory"]
    limit = (1 << 20) // ran.ranks
    assert int(told.output.splitlines()[-1].split()[0]) == limit
    assert f"Limiting max message size to: {limit}." in told.errors


@pytest.mark.parametrize(
    ("which", "because"),
    [
        ("no such root", "rank 9, is not one of the"),
        ("rotating persistent root", "the root of a persistent collective cannot change"),
        ("pickled vectors", "allgatherv does not support pickle buffers"),
        ("too small a grid", "each dimension must be at least 9"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(ran: Ran, which: str, because: str) -> None:
    told = ran.others[which]
    assert (told.status, told.output) == (2, "")
    assert because in told.errors


@pytest.mark.parametrize("how", ["idle", "flipped"])
def test_a_collective_that_brings_wrong_data_fails(
    stack_prefix: Callable[[str], Path], tmp_path: Path, how: str
) -> None:
    words = [
        [
            name,
            "-c",
            "-u",
            "1",
            "-m",
            "64:64",
            "-i",
            "1",
            "-x",
            "0",
            *(["-N", ring(tmp_path, 2)] * ("neighbor" in name)),
        ]
        for name in WITH_DATA
    ]
    program = ranks.PROGRAMS / "breaks_collectives.py"
    completed = ranks.run(stack_prefix("mpi"), 2, program, how, json.dumps(words))
    assert completed.status == 0, completed.stderr
    told = dict(zip(WITH_DATA, json.loads(completed.stdout.splitlines()[-1]), strict=True))
    passed = [
        name for name, (status, output, _) in told.items() if status != 1 or "DATA VALIDATION ERROR" not in output
    ]
    assert passed == []
