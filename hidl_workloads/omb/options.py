"""Options of a benchmark, under the names of OMB's long forms, with the defaults of OMB 7.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

LARGE = 8192
"""Messages of more bytes are large: fewer iterations."""

BUFFERS = ("bytearray", "numpy", "cupy", "torch", "numba", "pickle")
TYPES = ("mpi_char", "mpi_int", "mpi_float")
WINDOWS = ("create", "allocate", "dynamic")
SYNCHRONIZATIONS = ("lock", "flush", "flush_local", "lock_all", "pscw", "fence")
MAX_VALIDATION_WARMUP = 10
MAX_THREADS = 128

MIB = 1 << 20

Window = Literal["create", "allocate", "dynamic"]
Synchronization = Literal["lock", "flush", "flush_local", "lock_all", "pscw", "fence"]
Place = Literal["H", "D"]


class UsageError(ValueError):
    """Invalid options; each of ``faults`` is one sentence."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass(frozen=True)
class Counts:
    """Timed and untimed iterations, for messages up to ``LARGE`` bytes and above."""

    iterations: int
    iterations_large: int
    warmup: int
    warmup_large: int


#: LAT_LOOP_SMALL and similar constants in ``c/util/osu_util.h``.
COUNTS = {
    "latency": Counts(10000, 1000, 100, 10),
    "bandwidth": Counts(100, 20, 10, 2),
    "collective": Counts(1000, 100, 100, 10),
    "nonblocking-barrier": Counts(100, 100, 10, 10),
    "startup": Counts(1, 1, 0, 0),
}


@dataclass(frozen=True)
class Options:
    """Options of one benchmark; ``None`` for iterations and warm-up selects OMB's defaults."""

    min_size: int = 1
    max_size: int = 4 * MIB
    iterations: int | None = None
    warmup: int | None = None
    full: bool = False
    validation: bool = False
    validation_warmup: int = 5
    tail_lat: tuple[int, ...] = ()
    types: tuple[str, ...] = ("mpi_char",)
    buffer_num: Literal["single", "multiple"] = "single"
    window_size: int = 64
    vary_window: bool = False
    print_rate: bool = True
    num_pairs: int | None = None
    threads: tuple[int, int] = (1, 2)
    num_test_calls: int = 0
    mem_limit: int = 512 * MIB
    root_rank: int | None = 0
    """None: the root rotates."""
    in_place: bool = False
    nhbr: str = "cart:1:1"
    array_size: int = 32
    win_options: Window = "allocate"
    sync_option: Synchronization = "flush"
    accelerator: bool = False
    places: tuple[Place, Place] = ("H", "H")
    """Where rank 0's and the others' buffers lie: H host, D device."""
    buffer: str = "numpy"
    json: str = ""
    """A file for the table as JSON."""

    def counts(self, kind: str, size: int) -> tuple[int, int]:
        """Timed iterations and warm-up for messages of ``size`` bytes in a benchmark of this kind (``COUNTS``)."""
        default = COUNTS[kind]
        large = size > LARGE
        iterations = default.iterations_large if large else default.iterations
        warmup = default.warmup_large if large else default.warmup
        return (
            iterations if self.iterations is None else self.iterations,
            warmup if self.warmup is None else self.warmup,
        )

    def sizes(self) -> Iterable[int]:
        """The message sizes in bytes: from the smallest, each twice the one before."""
        size = self.min_size
        while size <= self.max_size:
            yield size
            size *= 2


def as_parameters(options: Options) -> Mapping[str, Any]:
    """The options as they are written into the metrics document."""
    return {field.name: getattr(options, field.name) for field in fields(options)}
