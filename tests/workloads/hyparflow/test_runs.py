"""The trainings, as a user runs them: one run of two ranks, in replicas and in partitions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Hidl, _environment

#: A ResNet of 8 layers, and a batch in two micro-batches.
LITTLE = ("depth=8", "batch=8", "micro_batches=2", "steps=2", "warmup=1", "costs=estimated", "timeline=true")
MODES = ("data", "model")


@pytest.fixture(scope="module")
def run(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    hidl = Hidl(_environment(tmp_path_factory.mktemp("runs"), stack_prefix("hyparflow").parents[4]))
    assigned = [word for each in LITTLE for word in ("--set", each)]
    words = ("run", "hyparflow-resnet", "--ranks-per-node", "2", "--repeat", "1", *assigned)
    return hidl.json(*words, "--matrix", f"mode={','.join(MODES)}")


def documents(run: Any, mode: str) -> tuple[Path, dict[str, Any]]:
    """The directory of a mode's step, and its metrics by name."""
    directory = Path(run["directory"]) / "steps" / str(MODES.index(mode) + 1)
    metrics = json.loads((directory / "metrics.json").read_text())["metrics"]
    return directory, {metric["name"]: metric for metric in metrics}


@pytest.mark.parametrize("mode", MODES)
def test_ranks_that_hold_the_same_weights_end_with_the_same(run: Any, mode: str) -> None:
    checksums = documents(run, mode)[1]["weight_checksum"]["samples"]
    assert len(checksums) == 2
    assert len(set(checksums)) == 1


def test_what_takes_long_is_said_before_it_begins(run: Any) -> None:
    words = ["building and planning", "the first step takes longest", "First step: "]
    said = (Path(run["directory"]) / "stdout.log").read_text()
    assert re.findall("|".join(words), said) == words * len(MODES)


def test_a_batch_belongs_to_a_replica(run: Any) -> None:
    """Two replicas train on twice as many images in a step as two partitions of one."""
    images = {mode: round(rate(run, mode) * seconds(run, mode)) for mode in MODES}
    assert images == {"data": 16, "model": 8}


def rate(run: Any, mode: str) -> float:
    return float(documents(run, mode)[1]["images_per_second"]["value"])


def seconds(run: Any, mode: str) -> float:
    return float(documents(run, mode)[1]["step_time"]["value"])


def test_partitions_wait_for_each_other(run: Any) -> None:
    found = documents(run, "model")[1]
    assert 0 < found["bubble"]["value"] < 1
    assert 0 < found["predicted_bubble"]["value"] < 1
    assert documents(run, "data")[1]["predicted_bubble"]["value"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_timeline_shows_what_every_rank_did_and_what_was_predicted(run: Any, mode: str) -> None:
    events = json.loads((documents(run, mode)[0] / "timeline.json").read_text())["traceEvents"]
    shown = {(event["pid"], event["cat"]) for event in events if event["ph"] == "X"}
    assert shown >= {(rank, lane) for rank in (0, 1) for lane in ("compute", "update", "predicted")}


def test_the_plan_is_drawn_beside_the_metrics(run: Any) -> None:
    assert (documents(run, "model")[0] / "plan.svg").read_text().startswith("<svg")
