"""Every Python program of the pages is run by a test: one without an entry in ``TESTS`` fails here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.docs.test_python_page import PAGE as PYTHON_PAGE
from tests.tiers import deep
from tests.workloads import ranks

PAGES = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("libs/*/README.md")]
_BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HERE = "tests/docs/test_programs.py::"
_KERAS = (
    "tests/workloads/test_keras_distributed.py::"
    "test_the_examples_of_the_how_to_train_as_one_process_on_the_joint_batches"
)
_HYPARFLOW = "tests/hyparflow/training/test_truth.py::"
_API = "tests/docs/test_python_page.py::test_the_page_runs_as_written"
_PLUGIN = "tests/docs/test_launchers_page.py::test_the_page_shows_the_package_that_is_tested"
#: Pages, the first lines of their programs, and the test that runs each, or why none does.
TESTS = {
    "docs/how-to/find-the-change.md": {"import hidl_cli.api as hidl": f"{_HERE}test_mypy_accepts_fragments"},
    "docs/how-to/find-what-is-wrong.md": {
        '"""The number of processes that this user may start."""': (
            "tests/doctor/test_registry.py::test_a_new_rule_is_one_file"
        )
    },
    "docs/how-to/nightly-validation.md": {"import reframe as rfm": "its workload is the reader's"},
    "docs/how-to/profile-a-run.md": {"import numpy as np": "tests/runs/test_profile.py::test_the_program_of_the_page"},
    "docs/how-to/run-it-again.md": {"import hidl_cli.api as hidl": f"{_HERE}test_mypy_accepts_fragments"},
    "docs/how-to/stop-and-continue.md": {
        "# count.py: mpiexec -n 2 python count.py": f"{_HERE}test_the_program_of_stop_and_continue_counts_on",
        "# own.py: hidl run --no-mpi --until-done --time 02:00:00 -- python own.py": (
            "tests/runs/test_goodput.py::test_a_program_with_checkpoints_of_its_own_has_a_goodput"
        ),
    },
    "docs/how-to/train-data-parallel.md": {
        **dict.fromkeys(("# train.py", "# fit.py", "# perceptron.py"), _KERAS),
        "# loop.py": (
            "tests/workloads/test_keras_distributed.py::"
            "test_the_loop_of_the_how_to_trains_as_one_process_on_the_joint_batches"
        ),
    },
    "docs/how-to/train-larger-models.md": {
        "# tune.py": f"{_HYPARFLOW}test_the_how_tos_recipe_fine_tunes_mobilenet_as_in_one_process",
        "hyparflow.gather(model)  # on all ranks; needs memory for all of it, until the next fit": (
            f"{_HYPARFLOW}test_programs_of_pages_train_as_plain_keras"
        ),
        'gpus = tf.config.list_physical_devices("GPU")': "it needs a GPU",
        "# train.py": f"{_HYPARFLOW}test_programs_of_pages_train_as_plain_keras",
    },
    "docs/how-to/train-with-frameworks.md": dict.fromkeys(
        (
            "# trainer.py",
            "# accelerated.py",
            "# perceptron.py",
            "# averaged_trainer.py",
            "# averaged_perceptron.py",
            "# compiled.py",
            "# sharded.py",
        ),
        "tests/workloads/test_frameworks.py::test_a_framework_trains_on_ranks_as_in_one_process_on_the_joint_batches",
    ),
    "docs/how-to/use-hidl-from-python.md": dict.fromkeys(_BLOCK.findall(PYTHON_PAGE), _API),
    "docs/how-to/write-a-plug-in.md": {
        "from hidl_cli.launch.launchers.contract import Launch, Launcher, Request": _PLUGIN,
        "import re": _PLUGIN,
    },
    "docs/tutorials/researcher.md": {
        "import argparse": "tests/tutorials/test_researcher.py::test_a_researchers_program"
    },
    "libs/hyparflow/README.md": {
        "# train.py: mpiexec -n 4 python train.py": f"{_HYPARFLOW}test_programs_of_pages_train_as_plain_keras"
    },
    "libs/mpi4c10d/README.md": {
        "# train.py: mpiexec -n 4 python train.py": f"{_HERE}test_the_program_of_mpi4c10d_averages_gradients"
    },
    "libs/mpi4dask/README.md": {
        "# program.py: mpiexec -n 6 python program.py": f"{_HERE}test_the_program_of_mpi4dask_prints_its_sum"
    },
    "libs/mpitraffic/README.md": {
        "# phases.py: mpiexec -n 2 env $(mpitraffic env profile) python phases.py": (
            "tests/mpitraffic/test_commandline.py::test_the_commands_of_the_page_record_its_program"
        )
    },
}
#: Pages whose programs are also files, and their directories in ``examples``.
EXAMPLES = {
    "docs/how-to/train-data-parallel.md": "data_parallel",
    "docs/how-to/train-with-frameworks.md": "frameworks",
}


def programs(page: str) -> list[str]:
    """Return the blocks of Python of a page."""
    return _BLOCK.findall((REPOSITORY / page).read_text(encoding="utf-8"))


def test_every_program_of_the_pages_has_a_test() -> None:
    pages = {str(page.relative_to(REPOSITORY)): page.read_text(encoding="utf-8") for page in PAGES}
    found = {page: {block.split("\n", 1)[0] for block in _BLOCK.findall(text)} for page, text in pages.items()}
    told = {page: {first.split("\n", 1)[0] for first in entries} for page, entries in TESTS.items()}
    assert {page: firsts for page, firsts in found.items() if firsts} == told


@pytest.mark.parametrize(
    "test", sorted({test for entries in TESTS.values() for test in entries.values() if "::" in test})
)
def test_the_tests_of_programs_exist(test: str) -> None:
    file, name = test.split("::")
    assert f"\ndef {name}(" in (REPOSITORY / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_examples_are_the_programs_of_the_pages(page: str) -> None:
    directory = REPOSITORY / "examples" / EXAMPLES[page]
    shown = {program.split("\n", 1)[0].removeprefix("# "): program for program in programs(page)}
    if os.environ.get("HIDL_WRITE_GOLDEN"):
        directory.mkdir(parents=True, exist_ok=True)
        for name, program in shown.items():
            (directory / name).write_text(program)
    assert {file.name: file.read_text() for file in directory.glob("*.py")} == shown


@pytest.mark.parametrize("page", ["docs/how-to/find-the-change.md", "docs/how-to/run-it-again.md"])
def test_mypy_accepts_fragments(page: str, tmp_path: Path) -> None:
    first, *lines = programs(page)[0].splitlines()
    body = "\n".join(f"    {line}" for line in lines)
    program = tmp_path / "fragment.py"
    program.write_text(f"{first}\n\ndef act(run: hidl.Run, good: hidl.Run, bad: hidl.Run) -> None:\n{body}\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", tmp_path / "cache", program],
        env=os.environ | {"MYPYPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("number", [3, deep(6)])
def test_the_program_of_mpi4dask_prints_its_sum(
    stack_prefix: Callable[[str], Path], tmp_path: Path, number: int
) -> None:
    (program,) = programs("libs/mpi4dask/README.md")
    (tmp_path / "program.py").write_text(program)
    done = ranks.run(stack_prefix("mpi4dask"), number, tmp_path / "program.py", timeout=120)
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines() == ["6"]


def test_the_program_of_stop_and_continue_counts_on(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    program = programs("docs/how-to/stop-and-continue.md")[0]
    (tmp_path / "count.py").write_text(program)
    stop = tmp_path / "stop"
    stop.touch()
    variables = {"HIDL_CHECKPOINT": str(tmp_path / "checkpoints"), "HIDL_STOP": str(stop)}
    stopped = ranks.run(stack_prefix("mpi"), 2, tmp_path / "count.py", timeout=60, **variables)
    assert (stopped.status, stopped.stdout) == (75, "")
    stop.unlink()
    done = ranks.run(stack_prefix("mpi"), 2, tmp_path / "count.py", timeout=60, **variables)
    assert done.status == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 500500", "1 1001000"]


@pytest.mark.parametrize("number", [2, 3])
def test_the_program_of_mpi4c10d_averages_gradients(
    stack_prefix: Callable[[str], Path], tmp_path: Path, number: int
) -> None:
    (program,) = programs("libs/mpi4c10d/README.md")
    (tmp_path / "train.py").write_text(program)
    words = ("-m", "hidl_workloads.world", "c10d_page", tmp_path / "results.json", tmp_path / "train.py")
    path = ":".join(map(str, (REPOSITORY, REPOSITORY / "libs" / "mpi4c10d", ranks.PROGRAMS)))
    done = ranks.run(stack_prefix("pytorch"), number, *words, timeout=120, PYTHONPATH=path)
    assert done.status == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["difference"] < 1e-5
    assert found["without averages"] > 0.1
