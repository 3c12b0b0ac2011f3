"""The benchmarks of collectives: blocking, non-blocking with overlap, persistent, and those on a neighbourhood."""

from __future__ import annotations

from functools import partial

from hidl_workloads.omb.benchmark import LATENCY, Benchmark, title
from hidl_workloads.omb.collective_calls import COLLECTIVES, NEIGHBORHOOD_COLLECTIVES, Collective
from hidl_workloads.omb.collective_timing import Form, measure_latency
from hidl_workloads.omb.neighborhood import neighborhood
from hidl_workloads.omb.options import BUFFERS, MIB, Options, UsageError
from hidl_workloads.omb.overlap import OVERLAP, measure_overlap

_NOUNS = {
    "alltoall": "All-to-All Personalized Exchange",
    "alltoallv": "All-to-Allv Personalized Exchange",
    "alltoallw": "All-to-Allw Personalized Exchange",
    "bcast": "Broadcast",
}

#: OMB's titles that do not follow the pattern of the others.
_TITLES = {
    "ialltoall": "Non-blocking All-to-All",
    "ibcast": "Non-Blocking Broadcast",
    "neighbor_alltoallv": "Neighborhood All-to-Allv",
    "neighbor_alltoallw": "All-to-Allw Personalized Exchange",
}


def _benchmark(collective: Collective, form: Form) -> Benchmark:
    name = {"blocking": "{}", "nonblocking": "i{}", "persistent": "{}_persistent"}[form].format(collective.name)
    nonblocking = form == "nonblocking"
    data = collective.name != "barrier"
    pickles = collective.pickled is not None and form == "blocking"
    return Benchmark(
        name=name,
        title=f"MPI%s {_TITLES.get(name) or _title(collective, form)} Latency Test",
        measure=partial(measure_overlap, collective) if nonblocking else partial(measure_latency, collective, form),
        kind="nonblocking-barrier" if name == "ibarrier" else "collective",
        options=_letters(collective, form),
        columns=OVERLAP if nonblocking else LATENCY,
        defaults=Options(max_size=MIB),
        check=partial(_check, collective, form),
        opening=partial(_opening, collective, form),
        sizes=data,
        shows_datatype=data,
        buffers=frozenset(BUFFERS) - (frozenset() if pickles else {"pickle"}),
        largest_size=_largest_in_blocks if collective.blocks else _largest,
    )


def _title(collective: Collective, form: Form) -> str:
    bare = collective.name.removeprefix("neighbor_")
    noun = f"Neighborhood {bare.capitalize()}" if collective.neighbors else _NOUNS.get(bare, bare.capitalize())
    return {"blocking": noun, "nonblocking": f"Non-blocking {noun}", "persistent": f"{noun} Persistent"}[form]


def _letters(collective: Collective, form: Form) -> str:
    """The options that hold: OMB's, and ``-k`` for every collective that has a root."""
    letters = "mixfMauzd"
    letters += "cT" if collective.name != "barrier" else ""
    letters += "l" if collective.in_place else ""
    letters += "k" if collective.rooted else ""
    letters += "N" if collective.neighbors else ""
    return letters + ("t" if form == "nonblocking" else "")


def _largest_in_blocks(options: Options, ranks: int) -> int:
    return options.mem_limit // ranks


def _largest(options: Options, ranks: int) -> int:
    return options.mem_limit


def _check(collective: Collective, form: Form, options: Options, ranks: int) -> None:
    faults = []
    if ranks < 2:
        faults.append("this test requires at least two processes")
    if collective.rooted and options.root_rank is not None and options.root_rank >= ranks:
        faults.append(f"-k: the root, rank {options.root_rank}, is not one of the {ranks} ranks")
    if form == "persistent":
        if options.root_rank is None:
            faults.append("-k rotate: the root of a persistent collective cannot change")
        faults += _lacks_persistent()
    if options.in_place and options.buffer == "pickle":
        faults.append("-l: pickled objects cannot be received in place")
    if faults:
        raise UsageError(*faults)
    if collective.neighbors:
        neighborhood(options.nhbr, ranks)


def _lacks_persistent() -> list[str]:
    from mpi4py import MPI

    from hidl_workloads import mpi_library

    try:
        MPI.COMM_SELF.Barrier_init().Free()
    except (AttributeError, NotImplementedError):
        return [
            f"{mpi_library.version()} (or mpi4py for it) has no persistent collectives, which require MPI 4.0; "
            "use the blocking or non-blocking ones"
        ]
    return []


def _opening(collective: Collective, form: Form, benchmark: Benchmark, options: Options, ranks: int) -> str:
    text = "\n" + title(benchmark, options)
    if collective.neighbors:
        dimensions = neighborhood(options.nhbr, ranks).dimensions
        grid = f"Dimensions size = {' '.join(map(str, dimensions))} \n" if dimensions else ""
        text = grid + text
    if form == "nonblocking":
        text += "# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n\n"
    return text


_BLOCKING = tuple(COLLECTIVES.values())
_NEIGHBORHOOD = tuple(NEIGHBORHOOD_COLLECTIVES.values())

BENCHMARKS = (
    *(_benchmark(collective, "blocking") for collective in (*_BLOCKING, *_NEIGHBORHOOD)),
    *(_benchmark(collective, "nonblocking") for collective in (*_BLOCKING, *_NEIGHBORHOOD)),
    # OMB has no persistent form of reduce_scatter_block.
    *(_benchmark(c, "persistent") for c in _BLOCKING if c.name != "reduce_scatter_block"),
)
