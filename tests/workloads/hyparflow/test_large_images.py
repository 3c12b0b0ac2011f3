"""Images that do not fit into one process: parts of them on several ranks, and GEMS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Hidl, _environment
from tests.workloads import ranks

PROGRAM = Path(__file__).parent / "programs" / "large_images.py"

#: A ResNet of 8 layers on 1024 x 1024 images; one process needs 6.5 GB.
LARGE = ("--depth=8", "--image_size=1024", "--batch=4")
#: The same on images whose rows do not divide evenly.
SMALL = ("--depth=8", "--image_size=50", "--batch=2")
COMMON = ("--micro_batches=1", "--steps=1", "--precision=float64", "--costs=estimated")


@pytest.fixture(scope="module")
def train(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``train(2, *LARGE)``: losses, peaks and weights of so many parts."""
    found: dict[Any, dict[str, Any]] = {}

    def train(parts: int, *words: str) -> dict[str, Any]:
        if (parts, words) not in found:
            file = tmp_path_factory.mktemp("large") / "found.npz"
            given = (PROGRAM, file, *words, *COMMON, f"--spatial={parts}")
            # oneDNN's allocator keeps freed memory.
            environment = {"PYTHONPATH": f"{ranks.REPOSITORY}", "TF_ENABLE_ONEDNN_OPTS": "0"}
            done = ranks.run(stack_prefix("hyparflow"), parts, *given, timeout=900, **environment)
            assert done.status == 0, done.stdout + done.stderr
            with np.load(file) as loaded:
                found[parts, words] = dict(loaded)
        return found[parts, words]

    return train


def far(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the greatest difference of a weight or loss."""
    names = one.keys() - {"before", "peaks"}
    assert names == other.keys() - {"before", "peaks"}
    return max(float(np.max(np.abs(one[name] - other[name]))) for name in names)


@pytest.mark.exact
def test_parts_of_uneven_images_train_like_one_process(train: Callable[..., Any]) -> None:
    assert far(train(1, *SMALL), train(3, *SMALL)) <= 1e-12


@pytest.mark.deep
@pytest.mark.exact
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_large_images_train_like_one_process(train: Callable[..., Any], parts: int) -> None:
    assert far(train(1, *LARGE), train(parts, *LARGE)) <= 1e-12


@pytest.mark.deep
@pytest.mark.parametrize(("parts", "share"), [(2, 0.6), (4, 0.35)])
def test_a_rank_needs_its_share_of_the_memory(train: Callable[..., Any], parts: int, share: float) -> None:
    assert max(train(parts, *LARGE)["peaks"]) <= share * train(1, *LARGE)["peaks"][0]


@pytest.mark.deep
def test_gems_trains_under_a_limit_that_1f1b_exceeds(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    hidl = Hidl(_environment(tmp_path, stack_prefix("hyparflow").parents[4]))
    given = ("mode=model", "image_size=256", "depth=20", "batch=8", "micro_batches=8", "recompute=never",
             "costs=estimated", "steps=1", "warmup=1", "memory_limit=80")  # fmt: skip
    words = ("run", "hyparflow-resnet", "--ranks-per-node", "4", "--repeat", "1")
    assigned = [word for each in given for word in ("--set", each)]
    refused = hidl(*words, *assigned, "--set", "schedule=1f1b")
    assert refused.returncode == 8
    assert "83,886,080 bytes" in refused.stdout + refused.stderr
    trained = hidl(*words, *assigned, "--set", "schedule=gems")
    assert trained.returncode == 0, trained.stdout + trained.stderr
