"""The workloads of collectives say what the program understands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from hidl_cli.plan.checks import load_workload
from hidl_cli.plan.parameters import arguments
from hidl_workloads.omb.benchmark import Benchmark
from hidl_workloads.omb.collectives import BENCHMARKS
from hidl_workloads.omb.commandline import parse
from hidl_workloads.omb.options import Options
from tests.conftest import Hidl

KNOWN = {benchmark.name: benchmark for benchmark in BENCHMARKS}
BLOCKING = ("allgather", "allreduce", "alltoall", "barrier", "bcast", "gather", "reduce", "reduce-scatter", "scatter")
NONBLOCKING = ("iallgather", "iallreduce", "ialltoall", "ibarrier", "ibcast")
GROUPS = ("collective", "nonblocking", "persistent", "neighborhood", "ineighborhood")
WORKLOADS = [f"omb-{name}" for name in (*BLOCKING, *NONBLOCKING, *GROUPS)]


def chosen(name: str) -> Iterator[tuple[Benchmark, Options]]:
    """Each benchmark that the workload can run, with the options that its default parameters give."""
    workload = load_workload(name)
    defaults = {parameter: found.default for parameter, found in workload.parameters.items()}
    for benchmark in workload.parameters["benchmark"].choices:
        words = arguments(workload.program, defaults | {"benchmark": benchmark}, workload.parameters)
        others = [word for word in words if not word.startswith("--benchmark=")]
        yield KNOWN[benchmark], parse(others, KNOWN[benchmark].options, KNOWN[benchmark].defaults)


@pytest.mark.parametrize("name", WORKLOADS)
def test_its_defaults_are_the_benchmark_s_which_are_omb_s(name: str) -> None:
    for benchmark, options in chosen(name):
        # -t is the number of threads too, in other benchmarks than these.
        assert replace(options, threads=benchmark.defaults.threads) == benchmark.defaults


@pytest.mark.parametrize("name", WORKLOADS)
def test_its_metrics_are_columns_of_the_table(name: str) -> None:
    metrics = load_workload(name).metrics
    for benchmark, options in chosen(name):
        columns = {column.metric: column.unit for column in benchmark.columns if column.shown(options)}
        assert {metric: found.unit for metric, found in metrics.items()}.items() <= columns.items()


@pytest.mark.parametrize("name", WORKLOADS)
def test_it_offers_the_buffers_that_its_benchmarks_take(name: str) -> None:
    offered = load_workload(name).parameters.get("buffer")
    if offered:
        assert set(offered.choices) == frozenset.intersection(*(benchmark.buffers for benchmark, _ in chosen(name)))


def test_every_benchmark_of_a_collective_has_a_workload() -> None:
    assert {benchmark.name for name in WORKLOADS for benchmark, _ in chosen(name)} == set(KNOWN)


def test_hidl_run_measures_a_collective(hidl_with: Callable[..., Hidl]) -> None:
    words = ["--ranks-per-node", "2", "--set", "validation=true", "--set", "max_size=64", "--set", "iterations=2"]
    run = hidl_with("mpi").json("run", "omb-ibcast", *words)
    assert run["steps"][0]["metrics"].keys() >= {"overall", "pure_communication", "overlap"}
