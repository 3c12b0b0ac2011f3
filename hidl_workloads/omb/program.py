"""The command line: which benchmarks run with which options, and what their ranks end with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_workloads import metrics
from hidl_workloads.omb import output, registry
from hidl_workloads.omb.benchmark import Benchmark
from hidl_workloads.omb.commandline import OPTIONS, describe, parse
from hidl_workloads.omb.options import Options, UsageError, as_parameters
from hidl_workloads.omb.output import Table
from hidl_workloads.omb.sweep import ValidationFailed, sweep

if TYPE_CHECKING:
    from mpi4py import MPI

OK, FAILED, WRONG_USAGE = 0, 1, 2

_USAGE = """\
usage: python -m hidl_workloads.omb BENCHMARK [OPTION...]
       python -m hidl_workloads.omb suite --benchmarks=NAME,NAME,... [OPTION...]
       python -m hidl_workloads.omb list
"""
_BENCHMARK = "--benchmark="
_EVERY_LETTER = "".join(option.letter for option in OPTIONS)


def main(words: Sequence[str]) -> int:
    """Do what the words say, on every rank; returns the exit status."""
    if not words or words[0] in ("-h", "--help"):
        return _print_on_rank_0(_USAGE, status=OK if words else WRONG_USAGE)
    name, *rest = words
    if name.startswith("--"):
        name, rest = _named_by_option(words)
    if name == "list":
        return _print_on_rank_0("".join(f"{name}\n" for name in registry.benchmarks()), status=OK)
    try:
        chosen = _choose(name, rest)
    except UsageError as error:
        return _wrong(error)
    if chosen is None:
        return _print_on_rank_0(_help(name), status=OK)
    (first, options), *more = chosen
    if first.run and not more:
        return first.run(first, options)
    return _run(name, chosen)


def _named_by_option(words: Sequence[str]) -> tuple[str, list[str]]:
    """The benchmark in ``--benchmark=NAME``, as a workload's parameters say it, and the other words."""
    names = [word.partition("=")[2] for word in words if word.startswith(_BENCHMARK)]
    return (names[-1] if names else words[0]), [word for word in words if not word.startswith(_BENCHMARK)]


def _choose(name: str, words: list[str]) -> list[tuple[Benchmark, Options]] | None:
    """Return the benchmarks with their options; None if help is requested. Raises ``UsageError``."""
    if name != "suite":
        benchmark = registry.find(name)
        if {"-h", "--help"} & set(words):
            return None
        return [(benchmark, parse(words, benchmark.options, benchmark.defaults))]
    names = [word.partition("=")[2] for word in words if word.startswith("--benchmarks=")]
    if len(names) != 1 or not names[0]:
        raise UsageError("a suite requires --benchmarks=NAME,NAME,...")
    others = [word for word in words if not word.startswith("--benchmarks=")]
    benchmarks = [registry.find(name) for name in names[0].split(",")]
    apart = [benchmark.name for benchmark in benchmarks if benchmark.run]
    if apart:
        raise UsageError(f"{', '.join(apart)} cannot be part of a suite, because MPI can only be initialised once")
    return [(b, parse(others, b.options, b.defaults, others=_EVERY_LETTER)) for b in benchmarks]


def _run(name: str, chosen: Sequence[tuple[Benchmark, Options]]) -> int:
    from mpi4py import MPI

    from hidl_workloads.world import failure_ends_all_ranks

    world = MPI.COMM_WORLD
    done = []
    with failure_ends_all_ranks():
        for benchmark, options in chosen:
            try:
                done.append(sweep(world, benchmark, options))
            except UsageError as error:
                return _wrong(error)
            except ValidationFailed as failure:
                return _invalid(world, benchmark, failure)
        _report(world, name, done)
    return OK


def _report(world: MPI.Comm, name: str, done: Sequence[Sequence[Table]]) -> None:
    """Write the metrics document, and the tables as JSON. In a suite, a metric's name begins with the benchmark's."""
    file = done[0][0].options.json
    if file and world.rank == 0:
        metrics.write_json(Path(file), output.as_json(done))
    parameters = {tables[0].benchmark.name: as_parameters(tables[0].options) for tables in done}
    prefixes = [f"{tables[0].benchmark.name}_" if name == "suite" else "" for tables in done]
    found = [
        metric for tables, prefix in zip(done, prefixes, strict=True) for metric in output.as_metrics(tables, prefix)
    ]
    metrics.report(world, program=f"omb {name}", parameters=parameters, versions={}, metrics=found)


def _invalid(world: MPI.Comm, benchmark: Benchmark, failure: ValidationFailed) -> int:
    """OMB's last line, and its exit status, on all ranks."""
    if world.rank == 0:
        output.say(
            f"DATA VALIDATION ERROR: osu_{benchmark.name} exited with status {FAILED} on message size {failure.size}."
        )
        sys.stderr.write(f"hidl: osu_{benchmark.name}: {failure}\n")
    return FAILED


def _help(name: str) -> str:
    benchmark = registry.find(name)
    return f"{_USAGE}\noptions of {benchmark.name}:\n{describe(benchmark.options, benchmark.defaults)}\n"


def _wrong(error: UsageError) -> int:
    return _print_on_rank_0("".join(f"omb: {fault}\n" for fault in error.faults), status=WRONG_USAGE)


def _print_on_rank_0(text: str, *, status: int) -> int:
    """Print on rank 0 alone: to stdout where all is well."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        (sys.stderr if status else sys.stdout).write(text)
    return status
