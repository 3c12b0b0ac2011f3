"""Measured costs: of nodes, and of the stages of a plan, in a Python that has TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hyparflow.planning.measure import slowest


@pytest.fixture(scope="module")
def planned(ask: Callable[..., Any]) -> dict[str, Any]:
    """Two inputs, BatchNorm, Dropout: measured, cut, its stages timed, cut again, timed again."""
    plan: dict[str, Any] = ask("planned", model="tangled", partitions=2, batch_size=8, refinements=1)
    return plan


@pytest.mark.deep
def test_the_prediction_rests_on_timed_stages(planned: dict[str, Any]) -> None:
    assert planned["costs"] == "refined"


@pytest.mark.deep
def test_measuring_leaves_the_model_as_it_was(planned: dict[str, Any]) -> None:
    assert planned["changed"] == []


@pytest.mark.deep
def test_every_pass_takes_time(planned: dict[str, Any]) -> None:
    sending = [stage for stage in planned["stages"] if stage["sends"]]
    passes = [stage["forward_seconds"] for stage in planned["stages"]] + [
        stage["backward_seconds"] for stage in sending
    ]
    assert min(passes) > 0


@pytest.mark.deep
def test_a_step_takes_no_less_than_its_busiest_partition(planned: dict[str, Any]) -> None:
    assert planned["prediction"]["step_seconds"] >= max(planned["prediction"]["busy_seconds"])


@pytest.mark.exact
@pytest.mark.parametrize(
    ("optimizer", "options", "slots"),
    [
        ("SGD", {}, 0),
        ("SGD", {"momentum": 0.9, "use_ema": True}, 2),
        ("Adam", {"amsgrad": True, "use_ema": True}, 4),
        ("RMSprop", {"momentum": 0.9, "centered": True}, 3),
        ("SGD", {"scaled": True}, 0),
        ("Adafactor", {}, 1 + 2 / 16),
    ],
)
def test_the_slots_of_an_optimizer_are_those_that_it_makes(
    ask: Callable[..., Any], optimizer: str, options: dict[str, Any], slots: float
) -> None:
    assert ask("copies", optimizer=optimizer, **options) == 2 + slots


def test_of_the_ranks_that_ran_a_stage_the_slowest_counts() -> None:
    replicas = [{0: (1.0, 2.0)}, {1: (3.0, 0.0)}, {0: (1.5, 1.0)}, {1: (2.0, 2.0)}]

    assert slowest(replicas) == [(1.0, 2.0), (2.0, 2.0)]


def test_stages_come_in_their_order_however_they_lie_on_the_ranks() -> None:
    chunks = [{1: (3.0, 4.0), 3: (7.0, 8.0)}, {0: (1.0, 2.0), 2: (5.0, 6.0)}]

    assert slowest(chunks) == [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0), (7.0, 8.0)]
