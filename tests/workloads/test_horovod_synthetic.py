"""How Horovod's synthetic benchmarks are started: on processors, on GPUs, and where GPUs would stay unused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.errors import HidlError
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.process import Completed
from tests.workloads import gpu_tools, ranks

#: Of a benchmark what matters here: it prints what it is started with.
SHOWS = "import sys\nprint('started with', *sys.argv[1:], flush=True)\n"


def words(stack: str | None = None) -> tuple[str, ...]:
    """What each rank of a run on Perlmutter's GPUs runs."""
    request = RunRequest(
        "horovod-synthetic",
        site="perlmutter",
        prefix="/apps",
        hypothetical=True,
        account="m0000_g",
        stack=stack,
    )
    return prepare(request).steps[0].launch.argv


def started(prefix: Path, directory: Path, source: str, **variables: str) -> Completed:
    """Run the module on two ranks."""
    (directory / "benchmark.py").write_text(source)
    path = f"{gpu_tools.nvidia(directory, count=2)}:/usr/bin:/bin"
    program = ("hidl_workloads.world", "--chooses-gpu", "hidl_workloads.horovod_synthetic", directory / "benchmark.py")
    return ranks.run(prefix, 2, "-m", *program, "--model=resnet50", PATH=path, **variables)


@pytest.fixture
def no_configuration(config: Path) -> None:
    """Shipped sites alone."""


@pytest.mark.usefixtures("no_configuration")
def test_on_gpus_it_chooses_its_gpu_itself() -> None:
    planned = words(stack="horovod-pytorch")
    start = planned.index("hidl_workloads.world")
    assert planned[start : start + 3] == ("hidl_workloads.world", "--chooses-gpu", "hidl_workloads.horovod_synthetic")


@pytest.mark.usefixtures("no_configuration")
def test_the_stack_for_processors_is_refused_on_gpus_with_the_one_that_serves() -> None:
    with pytest.raises(HidlError, match="it only supports cpu") as refused:
        words()
    assert "hidl install horovod-pytorch --site perlmutter, then --stack horovod-pytorch" in str(refused.value.hint)


def test_on_processors_it_is_told_so(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    done = started(stack_prefix("mpi"), tmp_path, SHOWS, HIDL_DEVICE="cpu")
    assert done.stdout.splitlines() == 2 * ["started with --model=resnet50 --no-cuda"], done.stderr


@pytest.mark.parametrize(
    ("framework", "why"),
    [
        ("tensorflow", "Horovod's operations for TensorFlow were built for CPUs: use --device cpu"),
        ("torch", "has no usable GPU on this rank: it was built for CPUs only"),
    ],
)
def test_where_gpus_would_stay_unused_it_does_not_begin(
    stack_prefix: Callable[[str], Path], tmp_path: Path, framework: str, why: str
) -> None:
    source = f"{SHOWS}if False:\n    import horovod.{framework} as hvd\n"
    done = started(stack_prefix("pytorch"), tmp_path, source, HIDL_DEVICE="gpu")
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr.count(why) == 1
