"""The ResNet-50 workload, as hidl starts it: through the world's check, on two ranks."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.process import Completed
from hidl_workloads.image_training import Images
from hidl_workloads.parameters import Resnet50
from hidl_workloads.training import strategy
from hidl_workloads.training.model import rank_batch, rank_seed
from tests.tiers import deep
from tests.workloads import ranks

pytestmark = [pytest.mark.real, pytest.mark.exact]

RANKS, BATCH, STEPS = 2, 2, 2
NOTE = "a b; touch /tmp/x $(id) 'one' \"two\"\nline \u00e9\u4e2d\U0001f600 --steps=9"
PARAMETER_COUNT = {"torch": 25_557_032, "tensorflow": 25_636_712}  # torchvision's and keras.applications'
Train = Callable[..., Completed]


@dataclass(frozen=True)
class Training:
    """What a run printed, and its metrics document."""

    framework: str
    stdout: str
    document: dict[str, Any]

    def metric(self, name: str) -> dict[str, Any]:
        (found,) = (metric for metric in self.document["metrics"] if metric["name"] == name)
        return dict(found)


@pytest.fixture(scope="module")
def train(stack_prefix: Callable[[str], Path]) -> Train:
    def run(framework: str, metrics: Path, *words: str) -> Completed:
        size = (f"--batch={BATCH}", "--image_size=32", f"--steps={STEPS}", "--warmup=1")
        program = ("-m", "hidl_workloads.world", "hidl_workloads.resnet50", f"--framework={framework}")
        prefix = stack_prefix({"torch": "pytorch"}.get(framework, framework))
        return ranks.run(prefix, RANKS, *program, *size, *words, HIDL_METRICS=str(metrics))

    return run


@pytest.fixture(scope="module", params=["torch", deep("torch bfloat16 adam"), deep("tensorflow bfloat16 adam")])
def training(request: pytest.FixtureRequest, train: Train, tmp_path_factory: pytest.TempPathFactory) -> Training:
    framework, precision, optimizer = [*request.param.split(), "float32", "sgd"][:3]
    metrics = tmp_path_factory.mktemp("run") / "metrics.json"
    words = (
        f"--precision={precision}",
        f"--optimizer={optimizer}",
        "--learning_rate=1e-3",
        f"--note={NOTE}",
    )
    completed = train(framework, metrics, *words)
    assert completed.status == 0, completed.stderr
    return Training(framework, completed.stdout, json.loads(metrics.read_text()))


def test_the_weights_are_equal_on_all_ranks(training: Training) -> None:
    checksum = training.metric("weight_checksum")
    assert checksum["unit"] == "sha256"
    assert checksum["samples"] == [checksum["value"]] * RANKS
    assert re.fullmatch("[0-9a-f]{64}", checksum["value"])


def test_the_model_is_resnet_50(training: Training) -> None:
    assert f"ResNet-50, {PARAMETER_COUNT[training.framework]:,} parameters" in training.stdout


def test_the_rate_is_that_of_all_ranks_at_the_median_step(training: Training) -> None:
    time, rate = training.metric("step_time"), training.metric("images_per_second")
    assert (time["unit"], rate["unit"]) == ("s", "images/s")
    assert len(time["samples"]) == len(rate["samples"]) == STEPS
    assert time["value"] == statistics.median(time["samples"])
    assert rate["value"] == pytest.approx(RANKS * BATCH / time["value"])


def test_the_loss_is_of_the_size_that_guessing_has(training: Training) -> None:
    loss = training.metric("loss")
    assert loss["unit"] == "nats"
    assert 0 < loss["value"] < 12  # guessing one of 1000 classes: ln(1000) = 6.9


def test_the_familiar_lines_are_printed_once(training: Training) -> None:
    assert len(re.findall(r"^Img/sec per rank: \d+\.\d \+-\d+\.\d$", training.stdout, re.MULTILINE)) == 1
    assert len(re.findall(r"^Total img/sec on 2 rank\(s\): \d+\.\d \+-\d+\.\d$", training.stdout, re.MULTILINE)) == 1


def test_the_parameters_are_kept_letter_by_letter(training: Training) -> None:
    parameters = training.document["parameters"]
    assert parameters["note"] == NOTE
    assert parameters.keys() == {field.name for field in fields(Resnet50)}
    assert (parameters["batch"], parameters["image_size"], parameters["learning_rate"]) == (BATCH, 32, 1e-3)


def test_the_versions_of_the_framework_are_kept(training: Training) -> None:
    assert training.document["versions"].keys() >= {"python", "mpi4py", "mpi_library", training.framework}


@pytest.mark.deep
def test_a_loss_that_is_not_finite_ends_the_run_without_metrics(train: Train, tmp_path: Path) -> None:
    completed = train("torch", tmp_path / "metrics.json", "--learning_rate=1e30")
    assert completed.status == 1
    assert re.search(r"FloatingPointError: the loss is (nan|inf) in step \d: choose a smaller", completed.stderr)
    assert not (tmp_path / "metrics.json").exists()


def test_a_wrong_argument_is_named(train: Train, tmp_path: Path) -> None:
    completed = train("torch", tmp_path / "metrics.json", "--stesp=3")
    assert completed.status == 1
    assert "unknown argument '--stesp=3'" in completed.stderr


@pytest.mark.parametrize("backend", ["mpi", deep("gloo")])
def test_torch_distributed_learns_what_hidl_s_averager_learns(train: Train, tmp_path: Path, backend: str) -> None:
    losses = {}
    for each in ("mpi4py", backend):
        file = tmp_path / each
        completed = train("torch", file, "--learning_rate=1e-3", f"--backend={each}")
        assert completed.status == 0, completed.stderr
        found = {metric["name"]: metric for metric in json.loads(file.read_text())["metrics"]}
        assert found["weight_checksum"]["samples"] == [found["weight_checksum"]["value"]] * RANKS
        losses[each] = found["loss"]["value"]
    assert losses[backend] == pytest.approx(losses["mpi4py"], rel=1e-3)


def test_every_rank_has_images_of_its_own() -> None:
    small = Images(Resnet50(batch=1, image_size=32))
    assert (rank_batch(small, 0, 0).inputs != rank_batch(small, 0, 1).inputs).any()


def test_seeds_of_neighbouring_runs_and_ranks_do_not_meet() -> None:
    seeds = {rank_seed(seed, rank) for seed in range(30) for rank in range(30)}
    assert len(seeds) == 900


@pytest.mark.parametrize(
    ("framework", "backend", "compression"),
    [("torch", "horovod", "bfloat16"), ("torch", "gloo", "float16"), ("tensorflow", "gloo", "bfloat16")],
)
def test_an_unsupported_compression_is_an_error(framework: Any, backend: Any, compression: Any) -> None:
    with pytest.raises(ValueError, match=f"compression {compression} is not supported by"):
        strategy.check(Resnet50(framework=framework, backend=backend, compression=compression))
