"""The program as a user starts it: alone, in suites, and by ``hidl run``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.stack.verify import OPEN_MPI_AS_ROOT
from tests.conftest import Hidl
from tests.workloads import ranks

OMB = ("-m", "hidl_workloads.omb")


def test_init_is_measured_where_mpi_was_not_initialised(wheels: Path, tmp_path: Path) -> None:
    document = tmp_path / "metrics.json"
    completed = ranks.run(wheels, 3, *OMB, "init", HIDL_METRICS=str(document), **OPEN_MPI_AS_ROOT)

    assert completed.status == 0, completed.stderr
    assert re.fullmatch(
        r"# OSU MPI Init Test v7\.4\nnprocs: 3, min: \d+ ms, max: \d+ ms, avg: \d+ ms\n", completed.stdout
    )
    metrics = {metric["name"]: metric for metric in json.loads(document.read_text())["metrics"]}
    assert len(metrics["init_avg"]["samples"]) == 3
    assert 0 < metrics["init_min"]["value"] <= metrics["init_avg"]["value"] <= metrics["init_max"]["value"]


@pytest.fixture(scope="module")
def mpich(stack_prefix: Callable[[str], Path]) -> Path:
    return stack_prefix("mpi")


def test_init_in_an_initialised_world_is_an_error(mpich: Path) -> None:
    completed = ranks.run(mpich, 2, "-m", "hidl_workloads.world", "hidl_workloads.omb", "init")
    assert completed.status != 0
    assert "cannot run if MPI is already initialised" in completed.stderr


def test_hello_reports_the_number_of_ranks(mpich: Path) -> None:
    completed = ranks.run(mpich, 3, *OMB, "hello")
    assert completed.stdout == "# OSU MPI Hello World Test v7.4\nThis is a test with 3 processes\n"


def test_a_suite_runs_its_benchmarks_in_one_world(mpich: Path, tmp_path: Path) -> None:
    document, table = tmp_path / "metrics.json", tmp_path / "table.json"
    words = ("suite", "--benchmarks=latency,osu_bw", "-m", "8:16", "-i", "2", "-W", "4", f"--json={table}")
    completed = ranks.run(mpich, 2, *OMB, *words, HIDL_METRICS=str(document))

    assert completed.status == 0, completed.stderr
    metrics = {metric["name"]: metric for metric in json.loads(document.read_text())["metrics"]}
    assert {name: metric["sizes"] for name, metric in metrics.items()} == {
        "latency_latency": [8, 16],
        "bw_bandwidth": [8, 16],
    }
    assert [done["name"] for done in json.loads(table.read_text())["benchmarks"]] == ["osu_latency", "osu_bw"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["latncy"], "did you mean latency"),
        (["suite"], "a suite requires --benchmarks="),
        (["suite", "--benchmarks=latency,init"], "init cannot be part of a suite"),
        (
            ["bw", "-m", "1:3", "-T", "mpi_char,mpi_float"],
            "no message size from 1 to 3 bytes (powers of two times 1) is large enough for an element of MPI_FLOAT",
        ),
        (["latency", "-q", "-i", "x"], "omb: unknown option -q\nomb: -i: 'x' is not a whole number"),
    ],
)
def test_wrong_words_are_reported_once_with_status_2(mpich: Path, words: list[str], expected: str) -> None:
    completed = ranks.run(mpich, 2, *OMB, *words)
    assert (completed.status, completed.stderr.count(expected)) == (2, 1)


def test_hidl_runs_a_benchmark_and_keeps_its_sizes(hidl_with: Callable[..., Hidl]) -> None:
    words = ("--ranks-per-node", "2", "--set", "max_size=4096", "--set", "iterations=3", "--set", "validation=true")
    (entry,) = hidl_with("mpi").json("run", "omb-latency", *words)["steps"]
    assert entry["metrics"]["latency"]["sizes"] == [2**power for power in range(13)]
