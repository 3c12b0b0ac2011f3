"""Messages between ranks, on MPICH and on Open MPI: the data arrives, and -c finds it where it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_workloads.omb.fan import fan_of
from hidl_workloads.omb.options import UsageError
from tests.workloads.omb import benchmarks

pytestmark = pytest.mark.real

PAIR = ("latency", "bw", "bibw", "latency_persistent", "bw_persistent", "bibw_persistent", "latency_mt")
PAIRS = ("multi_lat", "mbw_mr")
FEW = "-i 2 -x 1 -u 1 -c"


@pytest.fixture(scope="module")
def mpich(stack_prefix: Callable[[str], Path]) -> Path:
    return stack_prefix("mpi")


def test_what_arrives_is_what_was_sent(wheels: Path) -> None:
    lines = [f"{name} -m 2048:16384 {FEW} -T all" for name in (*PAIR, *PAIRS)]
    windows = [f"{name} -m 64:64 {FEW} -W 3 -b multiple" for name in ("bw", "bibw", "bw_persistent", "mbw_mr")]
    windows += [f"latency_mt -m 64:64 {FEW} -t {threads}" for threads in ("3", "3:2", "2:2")]
    kinds = [f"{name} -m 8192:16384 {FEW} --buffer=bytearray" for name in ("latency", "bw", "multi_lat")]
    kinds += [
        f"{name} -m 4096:65536 {FEW} --buffer=pickle" for name in ("latency", "bw -W 4", "bibw -W 4", "mbw_mr -W 4")
    ]

    for told in benchmarks.run(wheels, 2, *lines, *windows, *kinds):
        assert (told.status, set(told.verdicts)) == (0, {"Pass"}), told


def test_four_ranks_are_two_pairs(wheels: Path) -> None:
    lines = [f"{name} -m 8:8192 {FEW} -z" for name in PAIRS]
    for told in benchmarks.run(wheels, 4, *lines, f"mbw_mr -m 8:8 {FEW} -p 1"):
        assert (told.status, set(told.verdicts)) == (0, {"Pass"}), told


def test_an_odd_rank_looks_on(mpich: Path) -> None:
    for told in benchmarks.run(mpich, 3, f"multi_lat -m 8:8 {FEW}", f"mbw_mr -m 8:8 {FEW}"):
        assert (told.status, told.verdicts) == (0, ["Pass"]), told


def test_windows_vary_from_1_to_128(mpich: Path) -> None:
    (told,) = benchmarks.run(mpich, 2, "mbw_mr -V -m 8:16 -i 1 -x 0")
    bandwidths, rates = told.stdout.split("# Message Rate Profile")
    assert [len(line.split()) for line in f"{bandwidths}{rates}".splitlines() if line[:1].isdigit()] == [9] * 4


def test_fans_run_between_nodes(wheels: Path) -> None:
    lines = [f"{name} -m 64:128 -W 4 -z {FEW}" for name in ("bw_fan_in", "bw_fan_out")]
    for told in benchmarks.run(wheels, 4, *lines, program="runs_benchmarks_on_nodes.py"):
        assert (told.status, told.verdicts) == (0, ["Pass", "Pass"]), told


def test_a_wrong_element_is_found(mpich: Path) -> None:
    lines = [f"{name} -m 64:64 {FEW} --buffer={kind}" for name in (*PAIR, *PAIRS) for kind in ("numpy", "bytearray")]
    for told in benchmarks.run(mpich, 2, *lines, program="runs_corrupted_benchmarks.py"):
        assert (told.status, told.verdicts) == (1, ["Fail"]), told
        assert "exited with status 1 on message size 64." in told.stdout.splitlines()[-1]


def test_what_cannot_be_done_is_reported(mpich: Path) -> None:
    refused = {
        "latency": "exactly two processes, not 3",
        "mbw_mr -p 2": "2 pair(s) require at least 4 ranks, not 3",
        "bw_fan_in": "ranks on more than one node",
        "multi_lat --buffer=numba": "requires the library numba",
        "bw -f -i none": "does not support -f",
    }
    for told, expected in zip(benchmarks.run(mpich, 3, *refused), refused.values(), strict=True):
        assert (told.status, told.stdout) == (2, ""), told
        assert expected in told.stderr


def test_persistent_requests_carry_no_pickles(mpich: Path) -> None:
    (told,) = benchmarks.run(mpich, 2, "latency_persistent --buffer=pickle")
    assert (told.status, "does not support pickle buffers" in told.stderr) == (2, True)


def test_a_rank_of_the_first_node_has_a_partner_on_each_other_node() -> None:
    names = ["b", "a", "c", "a", "b", "c"]
    assert [(fan_of(rank, names).at_root, fan_of(rank, names).peers) for rank in (0, 1, 3, 5)] == [
        (False, [1]),
        (True, [0, 2]),
        (True, [4, 5]),
        (False, [3]),
    ]


def test_nodes_with_unequal_numbers_of_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="a: 2, b: 1"):
        fan_of(0, ["a", "a", "b"])
