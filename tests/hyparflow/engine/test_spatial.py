"""Training on parts of the images over real MPI gives the numbers of one process on whole images."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import chosen
from tests.workloads import ranks

pytestmark = pytest.mark.exact

PROGRAMS = Path(__file__).parent / "programs"
LIBRARY = ranks.REPOSITORY / "libs" / "hyparflow"


def _random(seeds: Iterable[int], size: int) -> list[dict[str, Any]]:
    return [{"name": f"random-{seed}-{size}", "ranks": size, "seed": seed} for seed in seeds]


def _model(size: int, spatial: int, partitions: int, schedule: str, *, recompute: bool, **more: Any) -> dict[str, Any]:
    again = "-recompute" if recompute else ""
    name = f"residual-{size}-{spatial}x{partitions}-{schedule}{again}"
    case = {"spatial": spatial, "partitions": partitions, "schedule": schedule, "recompute": recompute}
    return {"name": name, "ranks": size, "model": "residual", **case, **more}


def _combined(seeds: Iterable[int], size: int) -> list[dict[str, Any]]:
    return [{**case, "name": f"combined-{case['name']}", "combined": True} for case in _random(seeds, size)]


OWN = [
    {"name": f"own-{kind}", "ranks": 2, "own": kind}
    for kind in ("activation", "convolution", "softmax", "rescaling", "constant", "layer")
]
ALWAYS = [*_random(range(1, 9), 2), *_combined([1, 3, 15], 4), *OWN]
REST = [
    *_random(range(9, 49), 2),
    *_random(range(100, 140), 3),
    *_random(range(200, 240), 4),
    *_combined([2, *range(4, 15)], 4),
    *_combined([2, 13, 44, 51], 6),
    *_combined([9, 14, 42, 44, 51], 8),
    _model(2, 2, 1, "1f1b", recompute=False),
    _model(4, 2, 2, "1f1b", recompute=False),
    _model(4, 4, 1, "1f1b", recompute=False),
    _model(4, 2, 1, "gpipe", recompute=False),  # and two replicas
    _model(4, 2, 2, "gems", recompute=True),
    _model(8, 2, 2, "gems", recompute=False),
    _model(6, 3, 2, "1f1b", recompute=True),
]


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest,
    stack_prefix: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """How far each case ended from one process; all cases of a number of ranks are one launch."""
    names = chosen(request, "name")
    cases = [case for case in ALWAYS + REST if case["name"] in names]
    documents: dict[str, Any] = {}
    for size in sorted({case["ranks"] for case in cases}):
        directory = tmp_path_factory.mktemp("spatial")
        (directory / "cases.json").write_text(json.dumps([case for case in cases if case["ranks"] == size]))
        words = (PROGRAMS / "spatial.py", directory / "found.json", directory / "cases.json")
        environment = {"PYTHONPATH": f"{LIBRARY}:{PROGRAMS}", "TF_NUM_INTRAOP_THREADS": "1"}
        done = ranks.run(stack_prefix("tensorflow"), size, *words, timeout=900, **environment)
        assert done.status == 0, done.stdout + done.stderr
        documents |= json.loads((directory / "found.json").read_text())
    return documents


def test_all_parts_exchange_messages_in_one_order(
    run_on_stack: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """A part that waits for another message than its neighbour sends would wait for ever."""
    environment = {"PYTHONPATH": f"{LIBRARY}:{PROGRAMS}", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = run_on_stack("tensorflow", PROGRAMS / "orders.py", str(tmp_path / "found.json"), "1", "2", **environment)
    assert done.returncode == 0, done.stderr
    programs = json.loads((tmp_path / "found.json").read_text())
    assert len(programs) == 6  # forward and backward of the first stage, both in one of the second
    for parts in programs:
        for step in zip(*parts, strict=True):
            (kind,) = {message[0] for message in step}
            if kind == "gather":
                assert len({tuple(message[1]) for message in step}) == 1
                continue
            sent = [(part, to, shape) for part, message in enumerate(step) for to, shape in message[1]]
            received = [(owner, part, shape) for part, message in enumerate(step) for owner, shape in message[2]]
            assert sorted(sent) == sorted(received)


@pytest.mark.parametrize("name", [case["name"] for case in ALWAYS])
def test_parts_end_where_one_process_ends(found: dict[str, Any], name: str) -> None:
    assert found[name]["difference"] <= 1e-12, found[name]


@pytest.mark.deep
@pytest.mark.parametrize("name", [case["name"] for case in REST])
def test_all_other_parts_end_there_too(found: dict[str, Any], name: str) -> None:
    assert found[name]["difference"] <= 1e-12, found[name]
