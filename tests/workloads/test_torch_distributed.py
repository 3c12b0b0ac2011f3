"""The optimizer for PyTorch, and the sums below it: ranks with a part of the batch each do what one process does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import deep
from tests.workloads import ranks

pytestmark = pytest.mark.exact

Results = dict[str, Any]


@pytest.fixture(scope="module", params=[deep(1), 2, deep(3)], ids=["1 rank", "2 ranks", "3 ranks"])
def results(
    request: pytest.FixtureRequest,
    stack_prefix: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Results:
    return ranks.results(stack_prefix("pytorch"), request.param, tmp_path_factory.mktemp("torch"), "torch_distributed")


@pytest.fixture(scope="module")
def sums_of_four(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Results:
    sums: Results = ranks.results(
        stack_prefix("pytorch"), 4, tmp_path_factory.mktemp("sums"), "torch_distributed", "sums"
    )["sums"]
    return sums


EXACT = ["joint", "through MPI", "accumulated", "clipped"]
COMPRESSED = ["float16", "bfloat16"]


@pytest.mark.parametrize("case", EXACT)
def test_steps_equal_one_process_on_the_joint_batch(results: Results, case: str) -> None:
    assert results[case]["difference"] < 1e-6


@pytest.mark.parametrize("case", [*EXACT, *COMPRESSED, "overflow"])
def test_weights_are_bitwise_equal_on_all_ranks(results: Results, case: str) -> None:
    assert len(set(results[case]["checksums"])) == 1


@pytest.mark.parametrize(("case", "roundoff"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_compressed_steps_differ_by_their_type_s_rounding(results: Results, case: str, roundoff: float) -> None:
    # Three steps of 0.1, momentum 0.9: up to 0.561 gradients, each below 0.5 here and rounded twice.
    assert results[case]["difference"] < 2 * roundoff * 0.561 * 0.5


@pytest.mark.parametrize("case", ["scheduled and resumed", "closures", "skipped step", "kept zeros"])
def test_the_optimizer_is_used_as_any_other(results: Results, case: str) -> None:
    assert results[case] < 1e-6


def test_sums_are_not_divided(results: Results) -> None:
    ranks_in_world = len(results["joint"]["checksums"])
    assert results["summed"] == pytest.approx(ranks_in_world, rel=1e-5)


def test_ranks_with_different_models_are_reported_so(results: Results) -> None:
    others = list(range(1, len(results["joint"]["checksums"])))
    expected = f"ValueError: ranks {others}" if others else "no error"
    assert results["other model"].startswith(expected)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("no compression", "ValueError: compression must be one of none, float16, bfloat16, not 'int8'"),
        ("no passes", "ValueError: accumulate must be 1 or more backward passes, not 0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(results: Results, case: str, says: str) -> None:
    assert results[case] == says


def test_overflow_in_float16_is_an_error_on_all_ranks_and_changes_no_weight(results: Results) -> None:
    alone = len(results["joint"]["checksums"]) == 1  # nothing travels
    for error in results["overflow"]["errors"]:
        assert error.startswith(
            "no error" if alone else "FloatingPointError: a gradient is not finite after compression"
        )
    assert results["overflow"]["unchanged"] != alone


KINDS = ["mpi", "shared memory", *COMPRESSED]


@pytest.mark.parametrize("kind", KINDS)
def test_sums_keep_their_error_bound_and_are_equal_on_all_ranks(results: Results, kind: str) -> None:
    error_over_bound, equal = results["sums"][kind]
    assert error_over_bound <= 1
    assert equal


@pytest.mark.deep
@pytest.mark.parametrize("kind", [*KINDS, "two nodes", "two nodes, bfloat16"])
def test_sums_between_nodes_keep_it_too(sums_of_four: Results, kind: str) -> None:
    error_over_bound, equal = sums_of_four[kind]
    assert error_over_bound <= 1
    assert equal


def test_shared_memory_serves_the_ranks_of_a_node(results: Results) -> None:
    assert results["sums"]["usable"]


@pytest.mark.deep
def test_a_rank_that_fails_in_its_backward_pass_ends_all(stack_prefix: Callable[[str], Path]) -> None:
    program = ("-m", "hidl_workloads.world", "fails_in_backward")
    completed = ranks.run(stack_prefix("pytorch"), 2, *program, timeout=300)
    assert completed.status != 0
    assert "ArithmeticError: rank 1 cannot compute its gradient" in completed.stderr


#: What rank 0 does, and where it and the others are when nothing can go on.
UNEVEN = {
    "ends": ("the end of its program", "a backward pass"),
    "ends after a backward pass": ("the end of its program", "a step"),
    "raises": ("the end of its program", "a backward pass"),
    "skips a batch": ("the end of its program", "a backward pass"),
    "skips a step": ("a backward pass", "a step"),
    "closes": ("the end of an optimizer", "a backward pass"),
    "finalizes": ("the end of its program", "a backward pass"),
    "goes on after the error": ("the end of its program", "a backward pass"),
    "trains another model": ("a new optimizer", "a backward pass"),
}


@pytest.mark.parametrize("number", [2, deep(3)])
@pytest.mark.parametrize("case", [case if case == "ends" else deep(case) for case in UNEVEN])
def test_ranks_that_do_unequally_much_end_with_one_message(
    stack_prefix: Callable[[str], Path], case: str, number: int
) -> None:
    """Without failure_ends_all_ranks, and without waiting for a time limit."""
    completed = ranks.run(stack_prefix("pytorch"), number, ranks.PROGRAMS / "torch_uneven.py", case, timeout=60)
    first, other = UNEVEN[case]
    assert completed.status != 0
    assert re.search(f"rank 0 is at {first} and rank [12] is at {other}: all ranks must take", completed.stderr)


@pytest.mark.deep
@pytest.mark.parametrize("number", [2, 3])
def test_a_rank_may_be_late(stack_prefix: Callable[[str], Path], number: int) -> None:
    completed = ranks.run(stack_prefix("pytorch"), number, ranks.PROGRAMS / "torch_uneven.py", "is late", timeout=120)
    assert completed.status == 0, completed.stderr
