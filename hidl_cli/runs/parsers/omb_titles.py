"""What the titles in OMB's output mean: a column's title is a quantity and its unit, a test's title is a benchmark.

Titles as in OMB's sources, 5.9 to 7.4 (``c/util/osu_util_mpi.c`` and the ``BENCHMARK`` of each program).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """What a column holds. ``value``: a metric, in ``unit`` once it is multiplied by ``factor``; ``at_largest``: what
    counts is measured at the largest size, rather than a small one. ``other``: nothing that is kept."""

    kind: Literal["size", "value", "validation", "other"]
    metric: str = ""
    unit: str = ""
    factor: float = 1.0
    at_largest: bool = False


#: Units as printed -> the unit that is kept, and by what a value is multiplied.
_UNITS = {
    "ns": ("us", 1e-3),
    "us": ("us", 1.0),
    "ms": ("us", 1e3),
    "s": ("us", 1e6),
    "mb/s": ("MB/s", 1.0),
    "mb/sec": ("MB/s", 1.0),
    "gb/s": ("MB/s", 1e3),
    "messages/s": ("messages/s", 1.0),
    "%": ("%", 1.0),
}
_QUANTITIES = {
    "latency": "latency",
    "avg latency": "latency",
    "min latency": "latency_min",
    "max latency": "latency_max",
    "bandwidth": "bandwidth",
    "overall": "overall",
    "compute": "compute",
    "coll. init": "collective_init",
    "init avg": "collective_init",  # OMB-Py
    "mpi_test": "test",
    "mpi_wait": "wait",
    "wait avg": "wait",  # OMB-Py
    "pure comm.": "pure_communication",
    "min comm.": "pure_communication_min",
    "max comm.": "pure_communication_max",
    "overlap": "overlap",
}
#: Titles that are a unit only (osu_mbw_mr).
_BARE = {"mb/s": "bandwidth", "messages/s": "message_rate"}

_TITLE_WITH_UNIT = re.compile(r"^(?P<quantity>.*?)\s*\((?P<unit>[^()]+)\)$")
_PERCENTILE = re.compile(r"^p(?P<percent>\d+)(?:\.(?P<part>\d+))? tail (?P<of>lat|bw)$")


def column_of(title: str) -> Column:
    """What a column of this title holds."""
    words = title.strip().lower()
    if words in ("size", "size (b)"):
        return Column("size")
    if words == "validation":
        return Column("validation")
    if words in _BARE:
        return _value(_BARE[words], words)
    found = _TITLE_WITH_UNIT.match(words)
    if not found or found["unit"] not in _UNITS:
        return Column("other")
    tail = _PERCENTILE.match(found["quantity"])
    if tail:
        kind = {"lat": "latency", "bw": "bandwidth"}[tail["of"]]
        return _value(f"{kind}_p{tail['percent']}{'_' + tail['part'] if tail['part'] else ''}", found["unit"])
    metric = _QUANTITIES.get(found["quantity"])
    return _value(metric, found["unit"]) if metric else Column("other")


def _value(metric: str, printed: str) -> Column:
    unit, factor = _UNITS[printed]
    return Column("value", metric, unit, factor, at_largest=unit == "MB/s")


_BENCHMARKS = {
    "bandwidth": "bw",
    "bi-directional bandwidth": "bibw",
    "multiple bandwidth / message rate": "mbw_mr",
    "multi latency": "multi_lat",
    "multi-threaded latency": "latency_mt",
    "multi-process latency": "latency_mp",
    "mpi_accumulate latency": "acc_latency",
    "mpi_get_accumulate latency": "get_acc_latency",
    "mpi_compare_and_swap latency": "cas_latency",
    "mpi_fetch_and_op latency": "fop_latency",
    "mpi_get latency": "get_latency",
    "mpi_put latency": "put_latency",
    "mpi_get bandwidth": "get_bw",
    "mpi_put bandwidth": "put_bw",
    "mpi_put bi-directional bandwidth": "put_bibw",
}
_COLLECTIVES = {
    "broadcast": "bcast",
    "all-to-all personalized exchange": "alltoall",
    "all-to-allv personalized exchange": "alltoallv",
    "all-to-allw personalized exchange": "alltoallw",
    "all-to-all": "alltoall",
    "all-to-allv": "alltoallv",
    "all-to-allw": "alltoallw",
}
# The library that a build measures: "OSU MPI", "OSU MPI-CUDA", "OMB Python MPI", "OMB-Py MPI". One-sided tests have
# none, for there the function's name comes first: "OSU MPI_Put-CUDA Latency Test".
_LIBRARY = re.compile(r"^O(?:SU|MB)(?:-Py| Python)?\s+(?:MPI(?:-[A-Z]+(?: MANAGED)?)?\s+)?")
_DEVICE = re.compile(r"-(?:CUDA|ROCM|OPENACC|MANAGED)\b(?: MANAGED)?")


def benchmark_of(title: str) -> str:
    """The benchmark as OMB's programs are called, without ``osu_``: ``OSU MPI-CUDA Allreduce Latency`` is allreduce."""
    words = _DEVICE.sub("", _LIBRARY.sub("", title)).strip().lower()
    if words.replace(" persistent", "") != words:
        return f"{benchmark_of('OSU MPI ' + words.replace(' persistent', ''))}_persistent"
    if words in _BENCHMARKS:
        return _BENCHMARKS[words]
    blocking = re.sub(r"^non-blocking ", "", words)
    neighbour = re.sub(r"^neighborhood ", "", blocking)
    collective = re.sub(r" latency$", "", neighbour)
    name = _COLLECTIVES.get(collective, collective)
    before = ("i" if blocking != words else "") + ("neighbor_" if neighbour != blocking else "")
    return re.sub(r"\W+", "_", f"{before}{name}").strip("_")
