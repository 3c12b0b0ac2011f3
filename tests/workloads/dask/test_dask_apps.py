"""Dask's applications on real ranks, as hidl starts them: through the world's check, with their results verified."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.process import Completed
from tests.tiers import deep
from tests.workloads import gpu_tools, ranks

SMALL = {
    "transpose": ("--size=1100", "--chunk_size=300"),
    "merge": ("--chunk_size=50000", "--partitions=2"),
    "svd": ("--rows=9001", "--columns=20", "--chunk_size=3000"),
    "dataframe_sum": ("--chunk_size=300000",),
}
#: Bytes that two workers cannot do without sending.
LEAST_MOVED = {"transpose": 1_000_000, "merge": 500_000, "svd": 1000, "dataframe_sum": 10}
App = Callable[..., Completed]


@pytest.fixture
def app(stack_prefix: Callable[[str], Path], tmp_path: Path) -> App:
    def run(name: str, *words: str, number: int = 4, **variables: str) -> Completed:
        program = ("-m", "hidl_workloads.world", f"hidl_workloads.dask_apps.{name}")
        variables |= {"HIDL_METRICS": str(tmp_path / "metrics.json")}
        return ranks.run(stack_prefix("mpi4dask"), number, *program, *words, timeout=120, **variables)

    return run


def metrics(tmp_path: Path) -> dict[str, dict[str, Any]]:
    return {metric["name"]: metric for metric in json.loads((tmp_path / "metrics.json").read_text())["metrics"]}


def private_directory(temporary: Path) -> Path:
    """Where the workers of this user spill to on this machine."""
    return temporary / f"hidl-dask-{os.getuid()}-{platform.node()}"


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("transpose", "mpi"),
        deep("transpose", "tcp"),
        deep("merge", "mpi"),
        deep("svd", "mpi"),
        deep("dataframe_sum", "mpi"),
    ],
)
def test_an_application_measures_each_run_and_checks_what_it_computed(
    app: App, name: str, protocol: str, tmp_path: Path
) -> None:
    completed = app(name, *SMALL[name], f"--protocol={protocol}", "--runs=2")
    assert completed.status == 0, completed.stderr
    found = metrics(tmp_path)
    assert (found["workers"]["value"], len(found["time"]["samples"])) == (2, 2)
    rates = [found["throughput"]["samples"][run] * found["time"]["samples"][run] for run in range(2)]
    assert rates[0] == pytest.approx(rates[1])  # the same data in each run
    assert min(found["transferred"]["samples"]) > LEAST_MOVED[name]  # in each run: nothing is kept from the last one
    assert ("sent_by_mpi" in found) == (protocol == "mpi")


def test_mpi_carries_at_least_what_the_workers_exchange(app: App, tmp_path: Path) -> None:
    app("transpose", *SMALL["transpose"], "--protocol=mpi", "--runs=1", "--warmup=0")
    found = metrics(tmp_path)
    assert found["sent_by_mpi"]["value"] >= found["transferred"]["value"] > 1_000_000


def test_the_processes_ask_for_the_token_unless_told_otherwise(app: App, tmp_path: Path) -> None:
    assert app("transpose", *SMALL["transpose"], "--runs=1", "--warmup=0").status == 0
    assert "sent_by_mpi" in metrics(tmp_path)


def test_other_users_get_no_page_and_cannot_reach_what_workers_spill(
    stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    taken = private_directory(tmp_path)
    taken.mkdir()
    taken.chmod(0o777)  # as another user would, who is first
    found = ranks.results(stack_prefix("mpi4dask"), 3, tmp_path, "dask_privacy", "mpi", TMPDIR=str(tmp_path))
    assert found == {"pages": [], "modes": [["0o700"]]}
    assert list(taken.iterdir()) == []


def test_what_a_killed_worker_has_spilled_is_removed_by_the_next(
    stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    prefix, place = stack_prefix("mpi4dask"), {"TMPDIR": str(tmp_path)}
    assert ranks.run(prefix, 3, "-m", "hidl_workloads.world", "dask_killed", **place).status != 0
    assert len(list(private_directory(tmp_path).rglob("spilled"))) == 1
    found = ranks.results(prefix, 3, tmp_path, "dask_privacy", "mpi", **place)
    assert found["modes"] == [["0o700"]]
    assert list(private_directory(tmp_path).rglob("spilled")) == []


@pytest.mark.deep
def test_a_merge_can_be_shuffled_peer_to_peer(app: App) -> None:
    assert app("merge", *SMALL["merge"], "--shuffle=p2p", "--protocol=mpi", "--runs=1", "--warmup=0").status == 0


@pytest.mark.parametrize(
    ("number", "words", "says"),
    [
        (2, (), "dask-transpose: Dask requires at least 3 ranks (scheduler, client, workers), not 2"),
        (3, ("--size=1",), "dask-transpose: size must be 2 or more, not 1"),
        (3, ("--ignore_size=much",), "dask-transpose: ignore_size must be a size such as 1MiB, not 'much'"),
    ],
)
def test_what_cannot_be_run_is_refused_once(app: App, number: int, words: tuple[str, ...], says: str) -> None:
    completed = app("transpose", *words, number=number)
    assert completed.status == 1
    assert completed.stderr.count(says) == 1


def test_on_gpus_the_stack_must_hold_cupy(app: App, tmp_path: Path) -> None:
    tools = gpu_tools.nvidia(tmp_path, count=2)
    completed = app("transpose", PATH=f"{tools}:/usr/bin:/bin", HIDL_DEVICE="gpu")
    assert completed.status == 1
    assert "dask-transpose: cupy cannot be imported" in completed.stderr


@pytest.mark.parametrize("protocol", ["mpi", deep("tcp")])
def test_xgboost_trains_one_model_on_all_workers(
    stack_prefix: Callable[[str], Path], tmp_path: Path, protocol: str
) -> None:
    """The program compares its predictions with those of a training in one process."""
    program = ("-m", "hidl_workloads.world", "hidl_workloads.dask_apps.trees", f"--protocol={protocol}", "--runs=1")
    size = ("--rows=4000", "--columns=5", "--rounds=5", "--warmup=0")
    variables = {"HIDL_METRICS": str(tmp_path / "metrics.json")}
    completed = ranks.run(stack_prefix("dask-xgboost"), 4, *program, *size, timeout=200, **variables)
    assert completed.status == 0, completed.stderr
    found = metrics(tmp_path)
    assert (found["workers"]["value"], len(found["time"]["samples"])) == (2, 1)
    assert ("sent_by_mpi" in found) == (protocol == "mpi")


def test_the_check_of_xgboost_trains_on_a_limited_number_of_rows(
    stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    """Of each of the four partitions of 2000 rows, 1000."""
    size = ("--rows=4000", "--columns=5", "--rounds=5", "--runs=1", "--warmup=0")
    program = ("-m", "hidl_workloads.world", "xgboost_bounded", tmp_path / "rows", *size)
    completed = ranks.run(stack_prefix("dask-xgboost"), 4, *program, timeout=200)
    assert completed.status == 0, completed.stderr
    assert (tmp_path / "rows").read_text() == "4000"


def test_workers_that_train_alone_are_found(stack_prefix: Callable[[str], Path]) -> None:
    size = ("--rows=4000", "--columns=5", "--rounds=5", "--runs=1", "--warmup=0")
    program = ("-m", "hidl_workloads.world", "xgboost_alone", *size)
    completed = ranks.run(stack_prefix("dask-xgboost"), 4, *program, timeout=200)
    assert completed.status != 0
    assert "dask-xgboost: each of the 2 workers has trained alone, on its own rows" in completed.stderr


def test_scikit_learn_searches_on_dask_as_in_one_process(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    found = ranks.results(stack_prefix("dask-xgboost"), 4, tmp_path, "sklearn_on_dask", "mpi")
    on_dask, alone = found["scores"]
    assert on_dask == alone
    assert len(on_dask) == 8
    assert found["workers"] == 2
