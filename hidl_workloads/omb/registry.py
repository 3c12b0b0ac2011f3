"""The benchmarks by OMB's names (without ``osu_``). To add one, append its module to ``MODULES``."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module

from hidl_workloads.omb.benchmark import Benchmark
from hidl_workloads.omb.options import UsageError

#: Modules in this package, each with a sequence ``BENCHMARKS``. Importing them does not import MPI.
MODULES = (
    "latency",
    "bandwidth",
    "pairs",
    "persistent",
    "threads",
    "fan",
    "collectives",
    "one_sided",
    "atomics",
    "startup",
)


@lru_cache(maxsize=1)
def benchmarks() -> Mapping[str, Benchmark]:
    """All benchmarks, in the order of their modules."""
    modules = (import_module(f"hidl_workloads.omb.{name}") for name in MODULES)
    return {benchmark.name: benchmark for module in modules for benchmark in module.BENCHMARKS}


def find(name: str) -> Benchmark:
    """The benchmark of that name, with or without ``osu_``; raises ``UsageError`` that names what is near."""
    known = benchmarks()
    bare = name.removeprefix("osu_")
    if bare in known:
        return known[bare]
    near = get_close_matches(bare, known, 3)
    meant = f"did you mean {' or '.join(near)}?" if near else "`list` shows all benchmarks"
    raise UsageError(f"unknown benchmark {name!r}; {meant}")
