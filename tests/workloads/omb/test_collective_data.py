"""What is summed with -c, how overlap is computed, and the shares of a message: by themselves, without MPI."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hidl_workloads.omb.benchmark import Datatype
from hidl_workloads.omb.collective_shape import Shape
from hidl_workloads.omb.collective_timing import summand
from hidl_workloads.omb.collectives import BENCHMARKS
from hidl_workloads.omb.commandline import parse
from hidl_workloads.omb.options import LARGE, MIB
from hidl_workloads.omb.overlap import overlap_percent

KNOWN = {benchmark.name: benchmark for benchmark in BENCHMARKS}
NO_MPI: Any = None
CHAR, INT, FLOAT = (
    Datatype(f"MPI_{name}", NO_MPI, size, numpy)
    for name, size, numpy in (("CHAR", 1, "i1"), ("INT", 4, "i4"), ("FLOAT", 4, "f4"))
)


@pytest.mark.parametrize("datatype", [CHAR, INT, FLOAT], ids=lambda datatype: datatype.name)
@given(ranks=st.integers(1, 600), iteration=st.integers(0, 10_000))
@example(ranks=127, iteration=0)
@example(ranks=128, iteration=0)
def test_no_partial_sum_leaves_the_datatype(datatype: Datatype, ranks: int, iteration: int) -> None:
    summands = [summand(101, datatype, iteration, source, ranks) for source in range(ranks)]
    exact = np.sum([values.astype("i8") for values in summands], axis=0)
    assert (np.sum(summands, axis=0, dtype=datatype.numpy) == exact).all()


@given(ranks=st.integers(2, 600), iteration=st.integers(0, 10_000))
@example(ranks=101, iteration=0)
@example(ranks=202, iteration=0)
def test_sums_differ_from_element_to_element_and_from_iteration_to_iteration(ranks: int, iteration: int) -> None:
    first, next_one = (
        np.sum([summand(101, CHAR, number, source, ranks) for source in range(ranks)], axis=0)
        for number in (iteration, iteration + 1)
    )
    assert len(set(first.tolist())) > 1
    assert (first != next_one).any()


@given(count=st.integers(0, 5000), ranks=st.integers(1, 64))
def test_portions_are_the_whole_and_differ_by_one_at_most(count: int, ranks: int) -> None:
    portions = Shape(0, ranks, count).portions
    assert sum(portions) == count
    assert portions == sorted(portions, reverse=True)
    assert portions[0] - portions[-1] <= 1


@pytest.mark.parametrize(("overall", "percent"), [(10.0, 100.0), (15.0, 50.0), (20.0, 0.0), (30.0, 0.0)], ids=str)
def test_overlap_is_the_part_of_the_communication_that_hides(overall: float, percent: float) -> None:
    assert overlap_percent(overall, compute=10.0, pure=10.0) == percent


def omb(name: str, smallest: int, largest: int) -> list[tuple[int, int, int]]:
    """Size, iterations and warm-up by OMB 7.4's loop (``c/util/osu_util.h``: COLL_LOOP_SMALL and its kin)."""
    rows, size = [], smallest
    iterations, skip = (100, 10) if name == "ibarrier" else (1000, 100)
    while size <= largest:
        if size > 8192:
            iterations, skip = 100, 10
        rows.append((size, iterations, skip))
        size *= 2
    return rows


@pytest.mark.parametrize("name", ["allreduce", "iallreduce", "allreduce_persistent", "ibarrier"])
@given(smallest=st.integers(1, 2 * LARGE), largest=st.integers(1, 4 * MIB))
def test_sizes_and_iterations_are_omb_s(name: str, smallest: int, largest: int) -> None:
    benchmark = KNOWN[name]
    options = parse(["-m", f"{min(smallest, largest)}:{largest}"], benchmark.options, benchmark.defaults)
    rows = [(size, *options.counts(benchmark.kind, size)) for size in options.sizes()]
    assert rows == omb(name, min(smallest, largest), largest)


def test_the_largest_size_is_one_mebibyte_unless_reported() -> None:
    assert {max(benchmark.defaults.sizes()) for benchmark in BENCHMARKS} == {MIB}
