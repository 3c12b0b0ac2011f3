"""What the machine-learning programs share: they catch a wrong result, and they are what their recipes say."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.tiers import deep
from tests.workloads import ranks

RECIPES = ranks.REPOSITORY / "recipes" / "workloads"
MODULES = {
    path.stem: document["program"]["module"].rpartition(".")[2]
    for path in sorted(RECIPES.glob("*.yaml"))
    if (document := yaml.safe_load(path.read_text()))
    .get("program", {})
    .get("module", "")
    .startswith("hidl_workloads.ml.")
}
SMALL = {
    "kmeans": ("--points=400", "--clusters=4", "--block=32"),
    "kmeans_sweep": ("--points=400", "--most_clusters=4", "--block=32"),
    "knn": ("--queries=50", "--references=200", "--block=16"),
    "matmul": ("--rows=40", "--inner=30", "--columns=20"),
    "linear_regression": ("--points=200", "--columns=5"),
    "tsvd": ("--points=200", "--columns=12", "--components=3"),
}


@pytest.mark.parametrize("module", [name if name in ("kmeans", "matmul") else deep(name) for name in SMALL])
def test_a_wrong_result_of_one_rank_is_not_a_result(refuse: Callable[..., str], module: str) -> None:
    assert "the result is wrong: " in refuse(module, 2, *SMALL[module], around="spoils_a_result")


def test_there_is_a_recipe_for_each_program() -> None:
    assert set(MODULES.values()) == set(SMALL)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: BLAS has one thread in any case")
def test_the_threads_of_the_placement_are_those_of_blas(stack_prefix: Callable[[str], Path]) -> None:
    """hidl sets OMP_NUM_THREADS for each rank; NumPy's BLAS has that many threads, the main one among them."""
    count = (
        "import os, numpy; before = numpy.ones((500, 500)); before @ before; print(len(os.listdir('/proc/self/task')))"
    )
    one, two = (
        int(ranks.run(stack_prefix("mpi"), 1, "-c", count, OMP_NUM_THREADS=threads).stdout) for threads in ("1", "2")
    )
    assert (one, two) == (1, 2)


def test_arrays_that_mpi_cannot_read_are_staged_or_handed_over_when_they_are_ready(
    stack_prefix: Callable[[str], Path],
) -> None:
    completed = ranks.run(stack_prefix("mpi"), 2, "-m", "stages_arrays")
    assert completed.stdout.splitlines() == [
        "False [3.0, 20.0] [1.0, 1.0, 1.0] 2",
        "True [3.0, 20.0] [1.0, 1.0, 1.0] 2",
    ]
