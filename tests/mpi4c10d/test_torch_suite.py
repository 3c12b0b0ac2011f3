"""PyTorch's own tests of backends: what gloo passes, mpi passes too, and ``all_to_all`` besides.

After an intended change of the outcomes: HIDL_WRITE_GOLDEN=1 pytest -m deep tests/mpi4c10d/test_torch_suite.py, and
read the difference.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.mpi4c10d.conftest import Completed

PAGE = REPOSITORY / "docs" / "reference" / "pytorch-suite.md"
ALL_TO_ALL = ("test_all_to_all", "test_all_to_all_complex", "test_all_to_all_full_group")
#: A few seconds each: errors, timeouts and forms that few programs use.
FAST = (
    *ALL_TO_ALL,
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_get_backend",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_monitored_barrier_gloo_subgroup",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
)
Outcomes = dict[str, str]


@pytest.fixture
def outcomes(run_ranks: Callable[..., Completed], tmp_path: Path) -> Callable[..., Outcomes]:
    """``outcomes("gloo", 2, *names)``: how these tests (default: all) end with the backend on so many ranks."""

    def run(backend: str, ranks: int, *names: str) -> Outcomes:
        file = tmp_path / backend
        variables = {"TMPDIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
        done = run_ranks(ranks, "torch_suite.py", backend, str(file), *names, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        found: Outcomes = json.loads(file.read_text(encoding="utf-8"))
        return found

    return run


def test_some_of_pytorch_s_tests_pass(outcomes: Callable[..., Outcomes]) -> None:
    assert outcomes("mpi4c10d", 2, *FAST) == dict.fromkeys(FAST, "passed")


@pytest.mark.deep
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_mpi_passes_what_gloo_passes(outcomes: Callable[..., Outcomes], ranks: int) -> None:
    gloo, mpi = outcomes("gloo", ranks), outcomes("mpi4c10d", ranks)
    missing = {name: mpi[name] for name in gloo if gloo[name] == "passed" != mpi[name]}
    assert missing == {}
    assert {mpi[name] for name in ALL_TO_ALL} == {"passed"}
    written = section(ranks, gloo, mpi)
    page = PAGE.read_text(encoding="utf-8")
    its = re.compile(rf"^## {ranks} ranks\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if os.environ.get("HIDL_WRITE_GOLDEN"):
        PAGE.write_text(its.sub(lambda _: written, page), encoding="utf-8")
    assert its.findall(page) == [written]


def section(ranks: int, gloo: Outcomes, mpi: Outcomes) -> str:
    """Return the page's section about these outcomes."""
    counts = [Counter(map(kind, each.values())) for each in (gloo, mpi)]
    both = [name for name in mpi if mpi[name] == gloo[name] == "passed"]
    alone = [name for name in mpi if mpi[name] == "passed" != gloo[name]]
    failed = [name for name in mpi if kind(mpi[name]) == "failed"]
    lines = [f"## {ranks} ranks", "", "| | gloo | mpi |", "|---|---|---|"]
    lines += [f"| {each} | {counts[0][each]} | {counts[1][each]} |" for each in ("passed", "failed", "skipped")]
    lines += ["", "| passed by mpi alone | error of gloo |", "|---|---|"]
    lines += [f"| `{shortened(name)}` | {gloo[name]} |" for name in alone]
    lines += ["", "| failed by both | error of mpi |", "|---|---|"]
    lines += [f"| `{shortened(name)}` | {mpi[name]} |" for name in failed]
    lines += ["", f"Passed by both: {', '.join(f'`{shortened(name)}`' for name in both)}.", ""]
    return "\n".join([*lines, ""]) if ranks < 4 else "\n".join(lines)


def kind(outcome: str) -> str:
    return outcome if outcome in {"passed", "skipped"} else "failed"


def shortened(name: str) -> str:
    return name.removeprefix("test_")
