"""Trainings that are interrupted end with the weights of an uninterrupted one, bit by bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.process import Completed
from tests.tiers import deep
from tests.waiting import patience, until
from tests.workloads import ranks

pytestmark = pytest.mark.exact

STEPS = 8
GPT = ("gpt", "--context=16", "--vocabulary=100", "--layers=2", "--width=32", "--heads=4", "--learning_rate=0.01")
RESNET = ("resnet50", "--image_size=32", "--optimizer=adam")
HYPARFLOW = ("hyparflow.resnet", "--depth=8", "--batch=8", "--seed=3", "--costs=estimated")
KMEANS = ("ml.kmeans", "--points=6000", "--columns=3", "--clusters=20", "--max_iterations=9", "--spread=8")
#: Parameters of the numbers of steps, and of the data.
SIZES = {
    "gpt": ("--batch=2", f"--steps={STEPS - 1}", "--warmup=1", "--batches=5", "--seed=3"),
    "hyparflow": (f"--steps={STEPS - 1}", "--warmup=1"),
    "ml": ("--steps=1", "--warmup=1"),
}


class Chain:
    """Jobs of one training, with a checkpoint after each step."""

    def __init__(self, prefix: Path, directory: Path, number: int, words: tuple[str, ...]) -> None:
        directory.mkdir()
        self.checkpoints, self.stop, self.metrics = (directory / name for name in ("ck", "stop", "metrics.json"))
        self.prefix, self.number = prefix, number
        name, *options = words
        size = SIZES.get(name.partition(".")[0], SIZES["gpt"])
        self.words = ("-m", "hidl_workloads.world", f"hidl_workloads.{name}", *size, *options)
        self.variables = {
            "HIDL_RUN_ID": directory.name,
            "HIDL_METRICS": str(self.metrics),
            "HIDL_CHECKPOINT": str(self.checkpoints),
            "HIDL_CHECKPOINT_INTERVAL": "0",
            "HIDL_STOP": str(self.stop),
        }

    def job(self, **variables: str) -> Completed:
        return ranks.run(self.prefix, self.number, *self.words, **(self.variables | variables))

    def until_done(self) -> dict[str, Any]:
        completed = self.job()
        assert completed.status == 0, completed.stderr
        return self.results()

    def results(self) -> dict[str, Any]:
        return {each["name"]: each for each in json.loads(self.metrics.read_text())["metrics"]}

    def steps(self) -> int:
        """Return the number of steps in the newest checkpoint."""
        names = [path.name for path in self.checkpoints.glob("step-*")] if self.checkpoints.exists() else []
        return max((int(name.removeprefix("step-")) for name in names), default=0)

    def signal_at(self, step: int, number: signal.Signals) -> None:
        """Start a job, and send a signal to its ranks when a step is saved."""
        command = [self.prefix / "bin" / "mpiexec", "-n", str(self.number), self.prefix / "bin" / "python", *self.words]
        environment = ranks.python_environment() | {"HIDL_WORLD_SIZE": str(self.number)} | self.variables
        log = self.metrics.with_name("job.log")
        with log.open("wb") as file:
            job = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        until(lambda: self.steps() >= step or job.poll() is not None, otherwise=log.read_text)
        mark = f"HIDL_METRICS={self.metrics}".encode()
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                is_rank = (
                    mark in (directory / "environ").read_bytes()
                    and b"PMI_RANK=" in (directory / "environ").read_bytes()
                )
                if is_rank:
                    os.kill(int(directory.name), number)
            except OSError:
                continue
        job.wait(patience(120))


def summary(results: dict[str, Any]) -> list[Any]:
    return [results["weight_checksum"]["samples"], results["loss"]["value"], len(results["step_time"]["samples"])]


def clustering(results: dict[str, Any]) -> list[Any]:
    names = ("result_checksum", "inertia", "iterations", "smallest_cluster")
    return [[results[name]["value"] for name in names], len(results["fit_time"]["samples"])]


WAYS = [
    (GPT, 2),
    deep((*GPT, "--backend=mpi", "--parallel=fsdp"), 2),
    deep((*GPT, "--backend=gloo", "--parallel=fsdp"), 3),
    deep((*GPT, "--backend=gloo"), 3),
    deep((*GPT, "--backend=mpi", "--precision=bfloat16"), 4),
    deep((*GPT, "--backend=mpi", "--parallel=tp"), 2),
    deep((*GPT, "--backend=mpi", "--parallel=pp"), 2),
    deep(RESNET, 2),
    deep((*RESNET, "--compression=float16"), 3),
    deep((*RESNET, "--framework=tensorflow"), 2),
]


@pytest.mark.parametrize("ranks_of_jobs", [(2, 2, 2, 2), deep((2, 3, 1, 2))])
def test_a_clustering_that_is_interrupted_ends_like_one_that_is_not(
    stack_prefix: Callable[[str], Path], tmp_path: Path, ranks_of_jobs: tuple[int, ...]
) -> None:
    """Also if each job has another number of ranks."""
    prefix = stack_prefix("mpi")
    expected = clustering(Chain(prefix, tmp_path / "straight", 2, KMEANS).until_done())
    iterations = expected[0][2]
    assert iterations == 9

    chain = Chain(prefix, tmp_path / "chain", ranks_of_jobs[0], KMEANS)
    chain.stop.touch()
    stopped = chain.job()
    assert stopped.status == 75, stopped.stderr
    assert "stopped after iteration 1 of fit 1 of 2, to be continued" in stopped.stderr
    assert chain.results()["progress"]["value"] == 1
    chain.stop.unlink()
    chain.number = ranks_of_jobs[1]
    chain.signal_at(iterations // 2, signal.SIGKILL)
    reached = chain.steps()
    assert reached >= iterations // 2
    chain.number = ranks_of_jobs[2]
    chain.signal_at(reached + iterations // 2, signal.SIGUSR1)
    assert chain.steps() > reached
    chain.number = ranks_of_jobs[3]
    assert clustering(chain.until_done()) == expected
    # The last job has another number of ranks, and must time a whole fit: the second one has begun on the other number.
    assert chain.steps() == (2 if len(set(ranks_of_jobs)) == 1 else 3) * iterations


def test_the_times_of_a_clustering_are_those_of_the_last_number_of_ranks(
    stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    """Fits on 2 ranks, the second of them interrupted, and on 1 rank."""
    chain = Chain(stack_prefix("mpi"), tmp_path / "chain", 2, (*KMEANS, "--steps=3"))
    chain.signal_at(9 + 1, signal.SIGUSR1)
    reached = chain.steps()
    assert 9 < reached < 4 * 9
    manifest = json.loads((chain.checkpoints / f"step-{reached:012d}" / "manifest.json").read_text())
    times = manifest["document"]["seconds"]
    chain.number = 1
    results = chain.until_done()
    found = results["fit_time"]["samples"]
    assert len(found) == max(1, 4 - 1 - len(times))
    assert not {*found} & {*times}
    assert results["seeding_time"]["value"] != manifest["document"]["seeding_time"]


def test_a_clustering_of_other_points_is_refused(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    chain = Chain(stack_prefix("mpi"), tmp_path / "chain", 2, KMEANS)
    chain.stop.touch()
    assert chain.job().status == 75
    chain.words = (*chain.words, "--points=2999", "--spread=1")
    refused = chain.job()
    assert refused.status == 1
    assert "points was 6000, is 2999; spread was 8.0, is 1.0" in refused.stderr


HYPARFLOW_WAYS = [
    ((*HYPARFLOW, "--mode=model"), 2),
    deep((*HYPARFLOW, "--mode=data", "--precision=bfloat16"), 2),
    deep((*HYPARFLOW, "--mode=hybrid", "--partitions=2", "--schedule=gems", "--micro_batches=4"), 4),
    deep(("hyparflow.amoebanet", "--depth=3", "--filters=8", "--batch=8", "--mode=model", "--costs=estimated"), 3),
    deep(
        ("hyparflow.vgg", "--depth=11", "--batch=4", "--mode=data", "--costs=estimated", "--batch_norm=synchronised"), 2
    ),
]


@pytest.mark.parametrize(("words", "number"), HYPARFLOW_WAYS)
def test_a_partitioned_training_that_is_interrupted_ends_like_one_that_is_not(
    stack_prefix: Callable[[str], Path], tmp_path: Path, words: tuple[str, ...], number: int
) -> None:
    prefix = stack_prefix("hyparflow")
    expected = summary(Chain(prefix, tmp_path / "straight", number, words).until_done())
    chain = Chain(prefix, tmp_path / "chain", number, words)
    chain.stop.touch()
    stopped = chain.job()
    assert stopped.status == 75, stopped.stderr
    assert f"stopped after step 1 of {STEPS}, to be continued" in stopped.stderr
    assert chain.results()["progress"]["value"] == 1
    chain.stop.unlink()
    chain.signal_at(2, signal.SIGUSR1)
    reached = chain.steps()
    assert reached >= 2
    if reached < STEPS:
        chain.signal_at(min(STEPS - 1, reached + 1), signal.SIGKILL)
    found = summary(chain.until_done())
    assert found[:2] == expected[:2]
    assert chain.steps() == STEPS


@pytest.mark.deep
def test_a_plan_of_measured_costs_is_that_of_the_first_job(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    """Costs that are measured again would cut the model elsewhere; also another number of replicas keeps the stages."""
    words = (*HYPARFLOW, "--mode=hybrid", "--partitions=2", "--costs=measured")
    chain = Chain(stack_prefix("hyparflow"), tmp_path / "chain", 2, words)
    chain.stop.touch()
    plans = []
    for step, chain.number in ((1, 2), (2, 2), (3, 4)):
        assert chain.job().status == 75
        manifest = json.loads((chain.checkpoints / f"step-{step:012d}" / "manifest.json").read_text())
        plans.append(json.loads(manifest["document"]["plan"]))
    assert plans[0] == plans[1]
    cuts = [([stage["nodes"] for stage in plan["stages"]], plan["micro_batches"]) for plan in plans]
    assert cuts[0] == cuts[2]
    assert [plan["replicas"] for plan in plans] == [1, 1, 2]


@pytest.mark.parametrize(("words", "number"), WAYS)
def test_a_training_that_is_interrupted_ends_like_one_that_is_not(
    stack_prefix: Callable[[str], Path], tmp_path: Path, words: tuple[str, ...], number: int
) -> None:
    prefix = stack_prefix("tensorflow" if "--framework=tensorflow" in words else "pytorch")
    straight = Chain(prefix, tmp_path / "straight", number, words)
    expected = summary(straight.until_done())

    chain = Chain(prefix, tmp_path / "chain", number, words)
    chain.stop.touch()
    stopped = chain.job()
    assert stopped.status == 75, stopped.stderr
    assert f"stopped after step 1 of {STEPS}, to be continued" in stopped.stderr
    assert chain.results()["progress"]["value"] == 1
    chain.stop.unlink()
    chain.signal_at(2, signal.SIGUSR1)
    reached = chain.steps()
    assert reached >= 2
    if reached < STEPS:
        chain.signal_at(min(STEPS - 1, reached + 1), signal.SIGKILL)

    found = summary(chain.until_done())
    assert found[:2] == expected[:2]
    assert chain.steps() == STEPS


#: Trainings whose ranks have parts of the weights.
ON_2 = ("parallel=tp", "parallel=hsdp", "parallel=pp", "parallel=fsdp", "parallel=tp,partitions=1")
ON_4 = (
    "parallel=tp,partitions=2",
    "parallel=hsdp,partitions=2",
    "parallel=pp,partitions=2",
    "parallel=pp,micro_batches=8",
    "parallel=tp,partitions=2,optimizer=sgd,precision=bfloat16",
    "parallel=hsdp,partitions=2,backend=gloo,recompute=always",
)


@pytest.mark.parametrize(("number", "trainings"), [(2, ON_2), deep(4, ON_4)])
def test_trainings_whose_ranks_have_parts_of_the_weights_continue_bit_by_bit(
    stack_prefix: Callable[[str], Path], tmp_path: Path, number: int, trainings: tuple[str, ...]
) -> None:
    found = ranks.results(stack_prefix("pytorch"), number, tmp_path, "gpt_continued", *trainings, timeout=900)
    assert set(found) == set(trainings)
    assert {options for options, (straight, chain) in found.items() if straight != chain} == set()


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        (("--parallel=hsdp",), ("--partitions=1",), "partitions was 2, is 1"),
        deep(("--parallel=tp", "--partitions=1"), ("--partitions=2",), "partitions was 1, is 2"),
        deep(("--parallel=pp",), ("--partitions=1",), "partitions was 2, is 1"),
        deep(("--parallel=tp",), ("--parallel=fsdp",), "parallel was tp, is fsdp"),
    ],
)
def test_a_checkpoint_of_other_shards_is_refused(
    stack_prefix: Callable[[str], Path], tmp_path: Path, first: tuple[str, ...], then: tuple[str, ...], reason: str
) -> None:
    chain = Chain(stack_prefix("pytorch"), tmp_path / "chain", 2, (*GPT, "--backend=mpi", *first))
    chain.stop.touch()
    assert chain.job().status == 75
    chain.words = (*chain.words, *then)
    refused = chain.job()
    assert refused.status == 1
    assert reason in refused.stderr, refused.stderr


def test_activations_that_are_computed_again_in_later_jobs_change_no_bit(
    stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    prefix, expected = stack_prefix("pytorch"), []
    for name, words in (("straight", ()), ("chain", ("--recompute=always", "--memory_limit=100000"))):
        chain = Chain(prefix, tmp_path / name, 2, (*GPT, "--backend=mpi"))
        chain.stop.touch()
        assert chain.job().status == 75
        chain.stop.unlink()
        chain.words = (*chain.words, *words)
        expected.append(summary(chain.until_done()))
    assert expected[0] == expected[1]
    assert chain.results()["recompute"]["value"] == "always"


@pytest.mark.parametrize(
    ("words", "metric", "items"),
    [
        (GPT, "tokens_per_second", 2 * 16),
        ((*GPT, "--total_batch=6", "--batches=0"), "tokens_per_second", 6 * 16 // 3),
        deep((*HYPARFLOW, "--mode=data"), "images_per_second", 8),
    ],
)
def test_rates_are_those_of_the_ranks_that_trained(
    stack_prefix: Callable[[str], Path], tmp_path: Path, words: tuple[str, ...], metric: str, items: int
) -> None:
    """Two ranks train a step, three the rest, and two find nothing left to do."""
    prefix = stack_prefix("hyparflow" if words[0].startswith("hyparflow") else "pytorch")
    chain = Chain(prefix, tmp_path / "chain", 2, words)
    chain.stop.touch()
    assert chain.job().status == 75
    chain.stop.unlink()
    for chain.number in (3, 2):
        found = chain.until_done()
        rates, seconds = (found[name]["samples"] for name in (metric, "step_time"))
        assert [rate * each for rate, each in zip(rates, seconds, strict=True)] == pytest.approx(6 * [3 * items])
        assert found[metric]["value"] * found["step_time"]["value"] == pytest.approx(3 * items)


def test_synthetic_batches_of_another_size_are_refused(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    chain = Chain(stack_prefix("pytorch"), tmp_path / "chain", 2, (*GPT, "--total_batch=6"))
    chain.stop.touch()
    assert chain.job().status == 75
    chain.number = 3
    refused = chain.job()
    assert refused.status == 1
    assert "it belongs to another training: batch was 3, is 2" in refused.stderr


def test_a_checkpoint_of_another_model_is_refused(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    chain = Chain(stack_prefix("pytorch"), tmp_path / "chain", 2, GPT)
    chain.stop.touch()
    assert chain.job().status == 75
    chain.words = (*chain.words, "--layers=3")
    refused = chain.job()
    assert refused.status == 1
    assert "it belongs to another training: layers was 2, is 3; weights was " in refused.stderr
