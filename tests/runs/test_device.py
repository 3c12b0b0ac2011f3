"""The device of a run, from the line that is typed to the metrics or the exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.workloads import gpu_tools

SITE = """
name: workstation
title: This machine, with two GPUs by its file
extends: local
node_types:
  host: {gpus: 2, gpu_model: NVIDIA A100}
"""
SHOW = "import os; print(os.environ['HIDL_DEVICE'], os.environ.get('HIDL_GPU'), os.environ.get('LOCAL_RANK'))"


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl with stack mpi on a site whose nodes have GPUs."""
    ready = hidl_with("mpi")
    site = ready.config / "sites" / "workstation.yaml"
    site.parent.mkdir(parents=True)
    site.write_text(SITE)
    local = Path(ready.environment["XDG_DATA_HOME"]) / "hidl" / "installations" / "local"
    local.with_name("workstation").symlink_to(local.name)
    return ready


@pytest.fixture
def with_driver(hidl: Hidl, tmp_path: Path) -> Hidl:
    """The same with an nvidia-smi that lists two GPUs."""
    tools = gpu_tools.nvidia(tmp_path, count=2)
    return Hidl(hidl.environment | {"PATH": f"{tools}{os.pathsep}{hidl.environment['PATH']}"})


def test_the_metrics_name_the_gpu_of_each_rank(with_driver: Hidl) -> None:
    done = with_driver("run", "mpi-sanity", "--site", "workstation")
    assert done.returncode == 0, done.stderr
    (run,) = with_driver.runs.iterdir()
    assert json.loads((run / "plan.json").read_text())["device"] == "gpu"
    world = json.loads((run / "steps/1/metrics.json").read_text())["world"]
    assert [rank[0] for rank in world["gpus"]] == [
        {"id": f"GPU-aaaa-{n}", "model": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "driver": "580.65.06"}
        for n in range(2)
    ]


def test_a_node_without_a_gpu_ends_the_run_with_8_and_the_cause(hidl: Hidl) -> None:
    done = hidl("run", "mpi-sanity", "--site", "workstation")
    assert done.returncode == 8
    assert "HD198" in done.stderr
    assert "no nvidia-smi on PATH" in done.stderr
    assert "--device cpu" in done.stderr


def test_on_processors_the_same_node_serves(hidl: Hidl) -> None:
    done = hidl("run", "mpi-sanity", "--site", "workstation", "--device", "cpu")
    assert done.returncode == 0, done.stderr


def test_a_program_of_the_users_own_is_told_its_gpu(with_driver: Hidl) -> None:
    done = with_driver("run", "--site", "workstation", "--", "python", "-c", SHOW)
    assert done.returncode == 0, done.stderr
    (run,) = with_driver.runs.iterdir()
    assert sorted((run / "stdout.log").read_text().splitlines()) == ["gpu GPU-aaaa-0 0", "gpu GPU-aaaa-1 1"]


def test_a_program_of_the_users_own_ends_where_there_is_none(hidl: Hidl) -> None:
    done = hidl("run", "--site", "workstation", "--no-mpi", "--", "python", "-c", SHOW)
    assert done.returncode == 8
    assert "HD198" in done.stderr
    done = hidl("run", "--site", "workstation", "--no-mpi", "--device", "cpu", "--", "python", "-c", SHOW)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_a_program_that_gives_mpi_gpu_memory_is_not_started_on_a_library_that_reads_none(
    with_driver: Hidl, device: str
) -> None:
    file = with_driver.config / "workloads" / "sends.yaml"
    file.parent.mkdir()
    file.write_text(
        "{name: sends, title: Sends GPU memory, stacks: [{stack: mpi}], least_ranks: 2,"
        " devices: [cpu, {device: gpu, gpu_aware: true}],"
        " program: {command: [echo, started], patterns: [{metric: ok, pattern: '(started)'}]},"
        " metrics: {ok: {unit: text, required: false}}}"
    )
    done = with_driver("run", "sends", "--site", "workstation", "--device", device)
    (run,) = with_driver.runs.iterdir()
    assert ("started" in (run / "stdout.log").read_text()) == (device == "cpu")
    if device == "gpu":
        assert done.returncode == 8
        assert "HD625" in done.stderr
        assert "libmpi.so.12 answers MPIX_Query_cuda_support: 0" in done.stderr


def test_a_training_on_processors_is_refused_before_anything_starts(hidl: Hidl) -> None:
    horovod = ("--set", "framework=tensorflow", "--set", "backend=horovod")
    done = hidl("run", "resnet50", "--site", "workstation", *horovod)
    assert done.returncode == 2
    assert "resnet50 with framework=tensorflow backend=horovod computes on CPUs only" in done.stderr
    assert not hidl.runs.exists()


def test_the_words_of_the_device_are_completed_and_checked(hidl: Hidl) -> None:
    done = hidl("run", "mpi-sanity", "--device", "tpu")
    assert done.returncode == 2
    assert "'cpu', 'gpu'" in done.stderr
