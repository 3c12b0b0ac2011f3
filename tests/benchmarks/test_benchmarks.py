"""Benchmarks can be imported, run at a small size, and report a failure beside the figures of the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as program
from benchmarks.measure import Outcome
from hidl_cli import process
from tests.conftest import REPOSITORY
from tests.tiers import deep
from tests.waiting import patience


@pytest.mark.parametrize("name", program.NAMES)
def test_each_is_importable_and_measures(name: str) -> None:
    assert callable(import_module(f"benchmarks.{name}").measure)


def test_each_file_that_measures_is_listed() -> None:
    folder = Path(program.__file__).parent
    measuring = {file.stem for file in folder.glob("*.py") if "\ndef measure() -> list[Outcome]:" in file.read_text()}
    assert measuring == set(program.NAMES)


@pytest.mark.parametrize("error", [ImportError("it has moved"), SystemExit("status 1"), ValueError("[bold]")])
def test_one_that_fails_is_reported_beside_the_figures_of_the_others(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> list[Outcome]:
        raise error

    good = SimpleNamespace(measure=lambda: [Outcome("a figure", 1, 2, "s")])
    monkeypatch.setitem(sys.modules, "benchmarks.good", good)
    monkeypatch.setitem(sys.modules, "benchmarks.bad", SimpleNamespace(measure=fail))
    assert program.main(["good", "bad", "good"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("a figure") == 2
    assert "failed" in shown
    assert str(error)[:6] in shown
    assert program.main(["good"]) == 0


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["startup", "sites", "planning", "install", "spack", "run_overhead", "results_store"])
def test_each_runs_at_a_small_size(name: str) -> None:
    env = {**os.environ, "HIDL_BENCHMARKS_SMALL": "1"}
    done = process.run([sys.executable, "-m", "benchmarks", name], env=env, timeout=patience(500), check=False)
    assert done.status in (0, 1), done.stderr
    assert "failed" not in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("what", "ways"),
    [
        ("collectives", {"all_reduce 4000": ["mpi", "gloo", "mpi4py"]}),
        deep("training", {"fsdp2": ["mpi", "gloo"], "ddp": ["mpi", "gloo", "averager"]}),
    ],
)
def test_torch_distributed_measures_every_way(
    run_on_stack: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    what: str,
    ways: dict[str, list[str]],
) -> None:
    file = tmp_path / "measured.json"
    program = REPOSITORY / "benchmarks" / "torch_distributed_ranks.py"
    variables = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "HIDL_BENCHMARKS_SMALL": "1"}
    done = run_on_stack("pytorch", program, what, str(file), launch=("mpiexec", "-n", "2"), **variables)
    assert done.returncode == 0, done.stderr
    measured = json.loads(file.read_text(encoding="utf-8"))
    assert {name: list(times) for name, times in measured.items()} == ways
    assert all(seconds > 0 for times in measured.values() for block in times.values() for seconds in block)
