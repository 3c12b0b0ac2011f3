"""Programs of docs/how-to/train-with-frameworks.md: frameworks from PyPI train on ranks as in one process."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Hidl, hidl_in
from tests.waiting import patience

pytestmark = [pytest.mark.exact, pytest.mark.deep]

_PAGE = (REPOSITORY / "docs" / "how-to" / "train-with-frameworks.md").read_text()
_BLOCKS = re.findall(r"```python\n(# (\w+)\.py\n.*?)```", _PAGE, re.DOTALL)
PROGRAMS = {name: text for text, name in _BLOCKS}
_COMPARE = """
import sys, torch
one, other = (torch.load(file) for file in sys.argv[1:])
print(max(float((one[name] - other[name]).abs().max()) for name in one))
"""


@pytest.fixture(scope="module")
def frameworks(tmp_path_factory: pytest.TempPathFactory) -> Hidl:
    """hidl with the stack that the page installs."""
    hidl = hidl_in(tmp_path_factory.mktemp("frameworks"))
    (line,) = re.findall(r"\$ hidl (install .*)", _PAGE)
    installed = hidl(*line.split(), timeout=900)
    if installed.returncode:
        pytest.skip(f"transformers, accelerate and lightning do not install: {installed.stderr.splitlines()[-1]}")
    return hidl


@pytest.fixture
def run(frameworks: Hidl, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run(2, text, "name")``: run a program on ranks; it saves its model as ``name/model.pt``."""

    def start(ranks: int, text: str, name: str) -> subprocess.CompletedProcess[str]:
        directory = tmp_path / name
        directory.mkdir()
        (directory / "program.py").write_text(text)
        words = "run", "--stack", "frameworks", "--ranks-per-node", str(ranks), "--", "python", "program.py"
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        started = frameworks.start(*words, cwd=directory, **pipes)
        output, _ = started.communicate(timeout=patience(300))
        return subprocess.CompletedProcess(words, started.returncode, output)

    return start


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_framework_trains_on_ranks_as_in_one_process_on_the_joint_batches(
    run: Callable[..., subprocess.CompletedProcess[str]], frameworks: Hidl, tmp_path: Path, name: str, number: int
) -> None:
    joint = re.sub("^batch = 8$", f"batch = {8 * number}", PROGRAMS[name], flags=re.MULTILINE)
    for case, ranks, text in (("ranks", number, PROGRAMS[name]), ("joint", 1, joint), ("alone", 1, PROGRAMS[name])):
        done = run(ranks, text, case)
        assert done.returncode == 0, done.stdout

    def difference(other: str) -> float:
        files = [str(tmp_path / each / "model.pt") for each in ("ranks", other)]
        return float(frameworks("stack", "exec", "frameworks", "--", "python", "-c", _COMPARE, *files).stdout)

    assert difference("joint") < 1e-4
    assert difference("alone") > 1e-2


@pytest.mark.parametrize("name", ["averaged_trainer"])
def test_an_average_of_both_is_refused_with_the_line_to_type(
    run: Callable[..., subprocess.CompletedProcess[str]], name: str
) -> None:
    done = run(2, PROGRAMS[name].replace("    hide_launcher()\n", ""), "ranks")
    assert done.returncode != 0
    assert "DistributedDataParallel averages the gradient of" in done.stdout
    assert "call hidl_workloads.world.hide_launcher() before the framework starts" in done.stdout
