"""Description of a benchmark: its name, options, table columns, and the measurement of one message size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hidl_workloads.omb.options import Options

if TYPE_CHECKING:
    from mpi4py import MPI

VERSION = "7.4"
"""The OMB whose output this is."""


@dataclass(frozen=True)
class Column:
    """One column of the table, and the metric that it becomes."""

    title: str
    metric: str
    """Name in the metrics document; empty: the column is not a metric."""
    unit: str = "us"
    at: Literal["small", "large"] = "small"
    """What history uses: the figure at 8 B (or the smallest size), or that at the largest size."""
    width: int = 18
    decimals: int = 2
    when: str = ""
    """The option (a field of ``Options`` that is true or false) with which it is shown; empty: always."""

    def shown(self, options: Options) -> bool:
        """Is it in the table?"""
        return not self.when or bool(getattr(options, self.when))


LATENCY = (
    Column("Avg Latency(us)", "latency"),
    Column("Min Latency(us)", "latency_min", when="full"),
    Column("Max Latency(us)", "latency_max", when="full"),
    Column("Iterations", "", "", width=12, decimals=0, when="full"),
)
BANDWIDTH = (Column("Bandwidth (MB/s)", "bandwidth", "MB/s", at="large"),)


@dataclass(frozen=True)
class Datatype:
    """One of OMB's datatypes: its name in MPI, the type itself, its size in bytes, NumPy's name of it."""

    name: str
    mpi: MPI.Datatype
    size: int
    numpy: str


@dataclass(frozen=True)
class Point:
    """One message size of one datatype: the argument of ``Benchmark.measure``."""

    communicator: MPI.Comm
    options: Options
    datatype: Datatype
    size: int
    """Bytes of one message, a multiple of the datatype's size."""
    iterations: int
    warmup: int

    @property
    def count(self) -> int:
        """Elements of one message."""
        return self.size // self.datatype.size


@dataclass(frozen=True)
class Result:
    """Measurements at a point. ``values`` and ``samples`` count on rank 0 only, ``errors`` on every rank."""

    values: Sequence[float] = ()
    """One figure for each column of the benchmark, shown or not, in the column's unit."""
    errors: int = 0
    """Wrong elements, iterations or results that this rank found."""
    samples: Sequence[float] = ()
    """With -z: one figure for each iteration, in the unit of the first column."""


Measure = Callable[[Point], Result]
Opening = Callable[["Benchmark", Options, int], str]


def blank_and_title(benchmark: Benchmark, options: Options, ranks: int) -> str:
    """Return the first lines of most tables: an empty line and the title."""
    return "\n" + title(benchmark, options)


def title(benchmark: Benchmark, options: Options) -> str:
    """The title's line; ``%s`` in it is where OMB says what device it was built for."""
    device = "-CUDA" if options.accelerator or "D" in options.places else ""
    return f"# OSU {benchmark.title.replace('%s', device)} v{VERSION}\n"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark under OMB's name without ``osu_``."""

    name: str
    title: str
    """The title's line without ``OSU`` and the version, such as ``MPI%s Latency Test``."""
    measure: Measure | None
    """Called by every rank for every size; raises ``UsageError`` where it cannot. None: ``run`` does it all."""
    kind: Literal["latency", "bandwidth", "collective", "nonblocking-barrier", "startup"]
    """Whose defaults of iterations hold (``options.COUNTS``)."""
    options: str
    """The letters that hold, as OMB has them."""
    columns: tuple[Column, ...] = LATENCY
    defaults: Options = field(default_factory=Options)
    check: Callable[[Options, int], None] | None = None
    """Raises ``UsageError`` for options that do not go together, or a number of ranks that does not fit."""
    largest_size: Callable[[Options, int], int] | None = None
    """The largest message in bytes within -M on a number of ranks; None: -M does not apply."""
    opening: Opening = blank_and_title
    closing: Callable[[Sequence[tuple[int, Sequence[float]]]], str] | None = None
    """What follows the rows of a datatype, made from their sizes and values."""
    variant: Callable[[Benchmark, Options], Benchmark] | None = None
    """The benchmark that these options make of this one."""
    size_title: str = "# Size"
    size_width: int = 10
    sizes: bool = True
    """False: one row without a size, as of a barrier."""
    shows_datatype: bool = True
    """False: no line of the datatype, as of a barrier."""
    one_element: bool = False
    """The only size is that of one element."""
    verdicts: tuple[str, str] = ("Pass", "Fail")
    """OMB's words for right and wrong data."""
    reprint: bool = False
    """The opening is printed again for every datatype."""
    run: Callable[[Benchmark, Options], int] | None = None
    """Where there is no table at all: does everything, MPI's initialisation too, and gives the exit status."""
    buffers: frozenset[str] = frozenset({"bytearray", "numpy", "cupy", "torch", "numba", "pickle"})
    """The kinds of buffers that it can use."""
