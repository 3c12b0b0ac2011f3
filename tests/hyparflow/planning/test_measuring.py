"""Plans from measured costs, in a Python that has TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="module")
def planned(ask: Callable[..., Any]) -> dict[str, Any]:
    """Two inputs, BatchNorm, Dropout: measured, cut, its stages timed, cut again, timed again."""
    plan: dict[str, Any] = ask("planned", model="tangled", partitions=2, batch_size=8, refinements=1)
    return plan


def test_the_prediction_rests_on_timed_stages(planned: dict[str, Any]) -> None:
    assert planned["costs"] == "refined"


def test_measuring_leaves_the_model_as_it_was(planned: dict[str, Any]) -> None:
    assert planned["changed"] == []


def test_every_pass_takes_time(planned: dict[str, Any]) -> None:
    sending = [stage for stage in planned["stages"] if stage["sends"]]
    passes = [stage["forward_seconds"] for stage in planned["stages"]] + [
        stage["backward_seconds"] for stage in sending
    ]
    assert min(passes) > 0


def test_a_step_takes_no_less_than_its_busiest_partition(planned: dict[str, Any]) -> None:
    assert planned["prediction"]["step_seconds"] >= max(planned["prediction"]["busy_seconds"])
