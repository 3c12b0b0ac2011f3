"""Checkpoints on real ranks: complete ones are found, damaged ones are not, and one run owns a directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import ranks

TWO = [["shared 3sh", "3 of rank 0"], ["shared 3sh", "3 of rank 1"]]
THIRD = [3, 2, {"loss": 1.0}, TWO]
#: What is wrong with the newest checkpoint, and what is said of it.
DAMAGES = {
    "cut": "shared has 50 bytes instead of 800",
    "flipped": "the contents of rank-000001 have changed since it was written",
    "without manifest": "manifest.json: No such file or directory",
    "garbled manifest": "manifest.json is damaged",
    "changed document": "manifest.json is damaged",
    "without a rank": "rank-000001: No such file or directory",
    "of another step": "manifest.json is damaged",
}


@pytest.fixture(scope="module")
def found(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("checkpoints")
    return ranks.results(stack_prefix("mpi"), 2, place, "checkpoint_cases", str(place / "root"))


def test_the_newest_two_are_kept_and_each_rank_gets_its_own_state(found: Any) -> None:
    assert found["kept"]["names"] == ["owner.json", "step-000000000006", "step-000000000009"]
    step, number, document, read = found["kept"]["newest"]
    assert (step, number, document) == (9, 2, {"loss": 3.0})
    assert read == [["shared 9sh", "9 of rank 0"], ["shared 9sh", "9 of rank 1"]]


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(found: Any, kind: str) -> None:
    result = found["damages"][kind]
    assert result["got"] == THIRD
    assert f"damaged {kind}/step-000000000006 was skipped: {DAMAGES[kind]}" in result["said"]


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_never_displaces_a_complete_one(found: Any, kind: str) -> None:
    """Only one is kept, and the damaged one is newer than the complete one until it is written again."""
    result = found["damages"][kind]
    assert result["then"]["got"][0] == 4
    last, names = result["at last"]
    assert (last["got"][0], last["said"]) == (6, "")
    assert names == ["owner.json", "step-000000000006"]


def test_a_checkpoint_of_more_steps_than_the_training_has_is_older(found: Any) -> None:
    assert found["older training"]["got"] == THIRD
    assert "belongs to an older training with 6 steps, more than the 5 of this one" in found["older training"]["said"]


def test_a_new_directory_has_no_checkpoint(found: Any) -> None:
    assert found["nothing"] == {"got": None, "said": ""}


def test_a_second_run_is_refused_with_the_id_of_the_first(found: Any) -> None:
    assert "owned belongs to run first: use another directory, or remove " in found["owners"]["second"]["refused"]
    assert found["owners"]["released"]["got"][0] == 6


def test_a_job_that_was_replaced_publishes_nothing(found: Any) -> None:
    refused = found["owners"]["fenced"]["refused"]
    assert "owned was taken from this job and now belongs to another job of run first" in refused
    assert found["owners"]["next job"]["got"] is True


def test_another_model_is_refused_with_what_differs(found: Any) -> None:
    refused = found["other model"]["refused"]
    assert refused.endswith("cannot be continued, because it belongs to another training: width was 4, is 8")


def test_another_version_is_accepted_and_named(found: Any) -> None:
    assert found["other version"]["got"] == THIRD
    assert "an uninterrupted run: torch was 2.13, is 2.14" in found["other version"]["said"]


def test_another_number_of_ranks_is_accepted_where_the_state_can_be_shared(found: Any) -> None:
    results = found["ranks"]
    assert results["fewer"]["got"] == [3, 2, {"loss": 1.0}, [TWO[0]]]
    assert "ranks was 2, is 1" in results["fewer"]["said"]
    assert results["more"]["got"] == [3, 1, {"loss": 1.0}, [TWO[0], TWO[0]]]
    refused = results["shards"]["refused"]
    assert refused.endswith(
        "was written by 2 rank(s) and cannot be continued with 1: each rank has a shard of the weights"
    )


def test_a_full_disk_costs_the_checkpoint_but_not_the_program(found: Any) -> None:
    result = found["full disk"]
    assert result["got"] is False
    assert "full/step-000000000006 could not be written: File too large" in result["said"]
    assert result["names"] == ["owner.json", "step-000000000003"]
    assert (result["newest"][0], result["again"]) == (3, True)


def test_a_rank_whose_snapshot_fails_ends_all_ranks(found: Any) -> None:
    result = found["broken"]
    assert result["snapshot"]["refused"].endswith("broken/step-000000000006: KeyError: 'optimizer' (rank 1)")
    assert "broken: TypeError: Object of type object is not JSON serializable" in result["document"]["refused"]
    assert result["newest"][0] == 3


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_while_it_writes_costs_one_interval(
    stack_prefix: Callable[[str], Path], tmp_path: Path, victim: int
) -> None:
    prefix, directory = stack_prefix("mpi"), str(tmp_path / "checkpoints")
    program = ("-m", "hidl_workloads.world", "killed_while_saving", tmp_path / "never", directory)
    every_step = {"HIDL_CHECKPOINT_INTERVAL": "0"}
    killed = ranks.run(prefix, 2, *program, str(victim), "7", **every_step)
    assert killed.status != 0
    assert not (tmp_path / "never").exists()
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert len(left) == 5  # the unfinished one and the jobs' records too
    after = ranks.results(prefix, 2, tmp_path, "killed_while_saving", directory, **every_step)
    assert after["begun"] == 6
    assert after["counts"] == [10, 1010]
    assert after["names"] == [".jobs", "owner.json", "step-000000000009", "step-000000000010"]
