"""Sweep over datatypes and message sizes: measure, print and validate each on all ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from hidl_workloads.omb import buffers, output
from hidl_workloads.omb.benchmark import Benchmark, Datatype, Point
from hidl_workloads.omb.options import Options, UsageError
from hidl_workloads.omb.output import Row, Table

if TYPE_CHECKING:
    from mpi4py import MPI


class ValidationFailed(Exception):
    """Data that arrived was wrong, at ``size`` bytes; every rank raises it."""

    def __init__(self, size: int, errors: int) -> None:
        super().__init__(f"{errors} wrong element(s) at message size {size}")
        self.size = size


def sweep(communicator: MPI.Comm, benchmark: Benchmark, options: Options) -> list[Table]:
    """Measure every size of every datatype and print the table from rank 0; every rank calls this.

    Raises ``UsageError`` for what cannot be done, before anything is printed, and ``ValidationFailed`` after the row
    whose data was wrong, on all ranks.
    """
    benchmark = benchmark.variant(benchmark, options) if benchmark.variant else benchmark
    if benchmark.check:
        benchmark.check(options, communicator.size)
    if options.buffer not in benchmark.buffers:
        raise UsageError(
            f"{benchmark.name} does not support {options.buffer} buffers, only {', '.join(sorted(benchmark.buffers))}"
        )
    if benchmark.largest_size:
        options = _limited(communicator, options, benchmark.largest_size(options, communicator.size))
    _check_sizes(benchmark, options)
    buffers.check(communicator, options)
    tables = []
    for number, datatype in enumerate(output.datatypes(options)):
        table = Table(benchmark, options, datatype.name)
        tables.append(table)
        if communicator.rank == 0:
            if number == 0 or benchmark.reprint:
                _print_opening(benchmark, options, communicator.size)
            if benchmark.shows_datatype:
                output.say(f"# Datatype: {datatype.name}.")
            output.print_header(table)
        for size in _sizes(benchmark, options, datatype):
            _measure(communicator, table, datatype, size)
        if benchmark.closing and communicator.rank == 0:
            output.say(benchmark.closing([(row.size, row.values) for row in table.rows]))
    return tables


def _limited(communicator: MPI.Comm, options: Options, largest: int) -> Options:
    """The options with no larger messages than the memory limit leaves, and OMB's warning."""
    if options.max_size <= largest:
        return options
    if communicator.rank == 0:
        sys.stderr.write(
            f"Warning! Limiting max message size to: {largest}. Increase -M, --mem-limit for higher message sizes.\n"
        )
    return replace(options, max_size=largest)


def _sizes(benchmark: Benchmark, options: Options, datatype: Datatype) -> Iterator[int]:
    """The sizes that are whole elements; 0 where there is no size at all."""
    if not benchmark.sizes:
        yield 0
    elif benchmark.one_element:
        yield datatype.size
    else:
        yield from (size - size % datatype.size for size in options.sizes() if size >= datatype.size)


def _check_sizes(benchmark: Benchmark, options: Options) -> None:
    """Raise ``UsageError`` where a datatype has no size to measure."""
    empty = [each for each in output.datatypes(options) if not any(True for _ in _sizes(benchmark, options, each))]
    if empty:
        raise UsageError(
            *(
                f"no message size from {options.min_size} to {options.max_size} bytes (powers of two times "
                f"{options.min_size}) is large enough for an element of {each.name}, which has {each.size} bytes"
                for each in empty
            )
        )


def _print_opening(benchmark: Benchmark, options: Options, ranks: int) -> None:
    sys.stdout.write(benchmark.opening(benchmark, options, ranks))


def _measure(communicator: MPI.Comm, table: Table, datatype: Datatype, size: int) -> None:
    from mpi4py import MPI

    benchmark, options = table.benchmark, table.options
    iterations, warmup = options.counts(benchmark.kind, size)
    if benchmark.measure is None:
        raise TypeError(f"{benchmark.name} has no message sizes to measure")
    result = benchmark.measure(Point(communicator, options, datatype, size, iterations, warmup))
    errors = communicator.allreduce(result.errors, MPI.SUM) if options.validation else None
    if communicator.rank == 0:
        tail = output.percentiles(result.samples, options.tail_lat) if options.tail_lat else ()
        output.print_row(table, Row(size, result.values, errors, tail))
    if errors:
        raise ValidationFailed(size, errors)
