"""The GPT workload: a model of one file, trained by the loop that trains ResNet-50."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hidl_workloads.gpt import GPT
from hidl_workloads.parameters import Gpt
from hidl_workloads.training import strategy
from hidl_workloads.training.model import rank_batch
from tests.conftest import Hidl
from tests.tiers import deep
from tests.workloads import ranks

BATCH, CONTEXT, VOCABULARY = 2, 16, 100
SMALL = (
    f"--batch={BATCH}",
    f"--context={CONTEXT}",
    f"--vocabulary={VOCABULARY}",
    "--layers=2",
    "--width=32",
    "--heads=4",
    "--steps=3",
    "--warmup=1",
)


@pytest.mark.deep
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("options", [(), deep(("--backend=gloo", "--precision=bfloat16", "--optimizer=sgd"))])
def test_a_training_reports_tokens_and_equal_weights(
    stack_prefix: Callable[[str], Path], tmp_path: Path, number: int, options: tuple[str, ...]
) -> None:
    file = tmp_path / "metrics.json"
    program = ("-m", "hidl_workloads.world", "hidl_workloads.gpt", *SMALL, *options)
    completed = ranks.run(stack_prefix("pytorch"), number, *program, HIDL_METRICS=str(file))
    assert completed.status == 0, completed.stderr
    document = json.loads(file.read_text())
    metrics = {metric["name"]: metric for metric in document["metrics"]}
    assert metrics["tokens_per_second"]["unit"] == "tokens/s"
    weights = sum(6 * each for each in (2 * (12 * 32**2 + 13 * 32), VOCABULARY * 32, 2 * 32))
    flops = weights + 12 * 2 * 32 * CONTEXT  # PaLM, appendix B
    possible = sum(metrics["matmul_rate"]["samples"]) * 1e9
    assert metrics["mfu"]["value"] == pytest.approx(metrics["tokens_per_second"]["value"] * flops / possible, rel=0.2)
    assert 0 < metrics["peak_memory"]["value"] < 2000
    tokens = number * BATCH * CONTEXT
    assert metrics["tokens_per_second"]["value"] == pytest.approx(tokens / metrics["step_time"]["value"])
    assert metrics["weight_checksum"]["samples"] == [metrics["weight_checksum"]["value"]] * number
    # A network that has learned nothing gives each token the same probability.
    assert metrics["loss"]["value"] == pytest.approx(math.log(VOCABULARY), rel=0.05)
    assert document["program"] == "gpt"
    assert re.search(rf"^Total tokens/sec on {number} rank\(s\): ", completed.stdout, re.MULTILINE)


#: Backend, parallel and further options.
OVER_MPI = [
    ("mpi", "ddp"),
    ("mpi", "fsdp", "--recompute=always"),
    ("mpi", "tp"),
    ("mpi", "pp"),
]
OTHERS = [
    ("mpi4py", "ddp", "--micro_batches=2"),
    ("mpi", "ddp", "--micro_batches=2", "--recompute=always"),
    ("mpi", "fsdp", "--micro_batches=2"),
    ("mpi", "hsdp", "--partitions=1"),
    ("mpi", "tp", "--partitions=1", "--micro_batches=2"),
    ("mpi", "pp", "--partitions=1", "--micro_batches=2"),
    ("mpi", "pp", "--micro_batches=2", "--recompute=always"),
    ("gloo", "ddp"),
    ("gloo", "fsdp"),
    ("gloo", "tp"),
    ("gloo", "pp"),
]
IN_GROUPS = [
    ("mpi", "hsdp", "--partitions=2"),
    ("mpi", "tp", "--partitions=2", "--recompute=always"),
    ("mpi", "tp"),
    ("mpi", "pp", "--partitions=2"),
    ("gloo", "hsdp", "--partitions=2"),
    ("gloo", "pp", "--partitions=2", "--micro_batches=2"),
]


@pytest.mark.parametrize(
    ("number", "ways"), [(2, OVER_MPI), deep(2, OTHERS), deep(3, [("mpi", "ddp"), ("mpi", "fsdp")]), deep(4, IN_GROUPS)]
)
def test_every_way_learns_what_one_process_learns(
    stack_prefix: Callable[[str], Path], tmp_path: Path, number: int, ways: list[tuple[str, ...]]
) -> None:
    prefix, losses = stack_prefix("pytorch"), {}
    common = (*SMALL, "--layers=3", "--learning_rate=0.01")
    for backend, parallel, *others in ways:
        file = tmp_path / "metrics.json"
        options = (*common, f"--backend={backend}", f"--parallel={parallel}", *others)
        program = ("-m", "hidl_workloads.world", "hidl_workloads.gpt", *options)
        completed = ranks.run(prefix, number, *program, HIDL_METRICS=str(file))
        assert completed.status == 0, completed.stderr
        metrics = {metric["name"]: metric for metric in json.loads(file.read_text())["metrics"]}
        losses[(backend, parallel, *others)] = metrics["loss"]["value"]
        assert metrics["weight_checksum"]["samples"] == [metrics["weight_checksum"]["value"]] * number
    alone = ranks.results(prefix, 1, tmp_path, "gpt_alone", str(number), *common)
    assert alone["first"] > alone["last"] + 0.1  # it learns
    assert losses == pytest.approx(dict.fromkeys(losses, alone["last"]), rel=1e-4)


@pytest.mark.parametrize("backend", ["mpi4py", "horovod"])
def test_shards_require_a_backend_of_torch_distributed(backend: Any) -> None:
    with pytest.raises(ValueError, match=f"parallel=fsdp requires backend=mpi, gloo, nccl, not {backend}"):
        strategy.check(Gpt(backend=backend, parallel="fsdp"))


@pytest.mark.parametrize(
    ("number", "options", "reason"),
    [
        (2, ("--parallel=tp", "--heads=1"), "parallel=tp on 2 ranks requires a number of heads that is divisible by 2"),
        deep(2, ("--parallel=pp", "--layers=1"), "parallel=pp on 2 ranks requires at least one layer for each"),
        deep(2, ("--parallel=pp", "--micro_batches=1"), "micro_batches=1 must be at least the number of stages, 2"),
        deep(2, ("--parallel=pp", "--micro_batches=3"), "micro_batches=3 must divide the batch of all stages, 4"),
        deep(3, ("--parallel=hsdp", "--partitions=2"), "partitions=2 must divide the number of ranks, 3"),
    ],
)
def test_ranks_that_cannot_divide_the_model_are_refused(
    stack_prefix: Callable[[str], Path], number: int, options: tuple[str, ...], reason: str
) -> None:
    program = ("-m", "hidl_workloads.world", "hidl_workloads.gpt", *SMALL, "--backend=mpi", *options)
    completed = ranks.run(stack_prefix("pytorch"), number, *program)
    assert completed.status == 1
    assert completed.stderr.count(f"gpt: {reason}\n") == 1, completed.stderr


def test_ranks_share_the_total_batch() -> None:
    assert strategy.divide_batch(Gpt(total_batch=12), 3).batch == 4
    assert strategy.divide_batch(Gpt(batch=5), 3).batch == 5
    with pytest.raises(ValueError, match="total_batch=4 must be a multiple of the number of ranks, 3"):
        strategy.divide_batch(Gpt(total_batch=4), 3)


@pytest.mark.parametrize(
    ("total", "most", "asked", "parts"),
    [
        (48, 4, 0, {4: 1, 3: 2, 2: 2, 1: 4}),  # shares of 12, 16, 24 and 48 sequences
        (48, 4, 3, {4: 3, 3: 4, 2: 6, 1: 12}),
        (60, 5, 0, {5: 1, 4: 3, 3: 2, 1: 5}),  # 15 sequences in parts of 5, because 2 does not divide them
        (8, 8, 0, {8: 1, 4: 2, 1: 8}),
    ],
)
def test_a_larger_share_is_divided_into_parts_of_the_smallest_one(
    monkeypatch: pytest.MonkeyPatch, total: int, most: int, asked: int, parts: dict[int, int]
) -> None:
    monkeypatch.setenv("HIDL_MOST_RANKS", str(most))
    for number, expected in parts.items():
        parameters = strategy.divide_batch(Gpt(total_batch=total, micro_batches=asked), number)
        strategy.check(parameters)
        assert strategy.parts(parameters, 1) == expected
        assert parameters.batch // expected <= total // most // (asked or 1)
    monkeypatch.delenv("HIDL_MOST_RANKS")
    assert strategy.parts(strategy.divide_batch(Gpt(total_batch=total), 1), 1) == 1


def test_micro_batches_that_do_not_divide_the_batch_are_an_error() -> None:
    with pytest.raises(ValueError, match="micro_batches=3 must divide the batch of a rank, 4"):
        strategy.check(Gpt(micro_batches=3))


@pytest.mark.deep
def test_gpt_2_small_has_its_published_size_and_attends_to_no_later_token(stack_prefix: Callable[[str], Path]) -> None:
    code = """
import torch
from hidl_workloads.gpt import torch_network
from hidl_workloads.parameters import Gpt
network = torch_network(Gpt(layers=12, width=768, heads=12, context=1024))
print(sum(weight.numel() for weight in network.parameters()))
small = torch_network(Gpt(layers=2, width=32, heads=4, context=8, vocabulary=50)).eval()
tokens = torch.arange(8)[None]
changed = tokens.clone()
changed[0, 5] = 49
differs = (small(tokens) != small(changed)).any(dim=-1)[0]
print(differs.tolist())
"""
    printed = ranks.run(stack_prefix("pytorch"), 1, "-c", code).stdout.splitlines()
    assert printed == ["124439808", str([False] * 5 + [True] * 3)]


def test_hidl_runs_it_on_two_ranks(hidl_with: Callable[..., Hidl]) -> None:
    settings = [word for option in SMALL for word in ("--set", option.removeprefix("--"))]
    hidl = hidl_with("pytorch")
    assert hidl("run", "gpt", "--ranks-per-node", "2", *settings).returncode == 0
    (directory,) = hidl.runs.iterdir()
    (step,) = json.loads((directory / "metrics.json").read_text())["steps"]
    assert "tokens_per_second" in json.dumps(step)


def test_the_target_of_a_token_is_the_next_one() -> None:
    batch = rank_batch(GPT(Gpt(batch=3, context=9, vocabulary=50)), 0, 0)
    assert batch.inputs.shape == batch.targets.shape == (3, 9)
    np.testing.assert_array_equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert 0 <= batch.inputs.min() <= batch.inputs.max() < 50


def test_heads_that_do_not_divide_the_width_are_an_error() -> None:
    with pytest.raises(ValueError, match="width=32 must be a multiple of heads=5"):
        GPT(Gpt(width=32, heads=5))
