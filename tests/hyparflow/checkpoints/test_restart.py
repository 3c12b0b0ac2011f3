"""A training whose ranks are killed again and again ends with the weights of one that was not."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.process import Completed
from tests.workloads import ranks

pytestmark = [pytest.mark.deep, pytest.mark.exact]

PROGRAMS = Path(__file__).parent / "programs"
SMALL = Path(__file__).parents[1] / "training" / "programs"
LIBRARY = ranks.REPOSITORY / "libs" / "hyparflow"
#: How many kills; each costs a start of TensorFlow.
KILLS = int(os.environ.get("HYPARFLOW_KILLS", "3"))
SEED = int(os.environ.get("HYPARFLOW_KILLS_SEED", "8"))


@pytest.fixture(scope="module")
def runs(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> list[Completed]:
    """Runs in which a random rank is killed at a random moment, and a last one that ends."""
    root = tmp_path_factory.mktemp("killed")
    draw = random.Random(SEED)

    def run(*words: str) -> Completed:
        path = f"{LIBRARY}:{SMALL}"
        return ranks.run(stack_prefix("tensorflow"), 2, PROGRAMS / "killed.py", root, *words, PYTHONPATH=path)

    most = max(2, 36 // KILLS)  # so that the training does not end before the last kill
    killed = [run(str(draw.randrange(2)), str(draw.randint(1, most)), f"{draw.uniform(0, 0.02)}") for _ in range(KILLS)]
    return [*killed, run()]


@pytest.mark.timeout(3000)
def test_every_kill_ends_all_ranks(runs: list[Completed]) -> None:
    assert all(done.status != 0 for done in runs[:-1])


@pytest.mark.timeout(3000)
def test_who_died_is_said(runs: list[Completed]) -> None:
    assert all(
        "died: it was killed" in done.stderr or "EXIT CODE: 9" in done.stdout + done.stderr for done in runs[:-1]
    )


@pytest.mark.timeout(3000)
def test_the_restarted_training_reaches_the_same_weights(runs: list[Completed]) -> None:
    assert runs[-1].status == 0, runs[-1].stderr
    (line,) = [line for line in runs[-1].stdout.splitlines() if line.startswith("far ")]
    assert float(line.removeprefix("far ")) <= 1e-12
