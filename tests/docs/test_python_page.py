"""The page on hidl from Python: its blocks run as one program on this machine, and mypy accepts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hidl_cli import api
from tests.conftest import REPOSITORY, Hidl
from tests.waiting import patience

PAGE = (REPOSITORY / "docs" / "how-to" / "use-hidl-from-python.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```python(?: title=\"(?P<file>[^\"]+)\")?\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)


def example() -> str:
    """The blocks that are not files, in turn, as one program."""
    return "\n".join(found["code"] for found in _BLOCK.finditer(PAGE) if not found["file"])


@pytest.mark.real
def test_the_page_runs_as_written(hidl: Hidl, tmp_path: Path) -> None:
    for found in _BLOCK.finditer(PAGE):
        if found["file"]:
            (tmp_path / found["file"]).write_text(found["code"], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", example()],
        env=hidl.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience(500),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("COMPLETED pass: ")
    assert [line for line in lines if line.startswith("0.")] == [
        f"{lr} {repetition} 101.0" for repetition, order in ((1, ("0.1", "0.01")), (2, ("0.01", "0.1"))) for lr in order
    ]
    assert "epoch 2  Img/sec: 102  loss: 0.0333" in lines
    assert any(re.fullmatch(r"(pass|fail|inconclusive) exit code (0|10|11) wall_time", line) for line in lines)
    assert any(re.fullmatch(r"#!/usr/bin/env bash 1", line) for line in lines)
    assert any(line.startswith("2 unknown workload 'resnet51' | next: did you mean 'resnet50'?") for line in lines)
    assert lines[-2:] == ["True", "CANCELLED"]


@pytest.mark.real
def test_mypy_strict_accepts_the_page(tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(example(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", tmp_path / "cache", program],
        env=os.environ | {"MYPYPATH": str(REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience(500),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_sees_the_types_of_options() -> None:
    """What the decorator gives ``run`` and ``plan`` are the options, for people too."""
    import inspect

    assert {"workload", "command", "nodes", "scale"} <= set(inspect.signature(api.run).parameters)
    assert inspect.signature(api.run).return_annotation == "Run"
