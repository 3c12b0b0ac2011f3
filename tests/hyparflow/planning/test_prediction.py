"""A step as a timeline."""

from __future__ import annotations

import pytest
from hyparflow.errors import PlanError
from hyparflow.planning.prediction import timeline
from hyparflow.schedules import schedule


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_even_stages_take_as_long_as_the_formula_says(name: str) -> None:
    passes = timeline(schedule(name, 3, 5), [1.0] * 3, [2.0] * 3, {(0, 1): 0.0, (1, 2): 0.0})
    assert passes.seconds == pytest.approx((5 + 3 - 1) * 3.0)


def test_interleaving_divides_the_bubble_by_the_chunks() -> None:
    stages = 4 * 2
    links = {(stage, stage + 1): 0.0 for stage in range(stages - 1)}
    passes = timeline(schedule("interleaved", 4, 8, 2), [0.5] * stages, [1.0] * stages, links)
    assert passes.seconds == pytest.approx(8 * 3.0 + 3 * 3.0 / 2)


def test_a_message_delays_who_waits_for_it() -> None:
    passes = timeline(schedule("gpipe", 2, 1), [1.0, 1.0], [2.0, 2.0], {(0, 1): 0.25})
    assert passes.seconds == pytest.approx(1 + 0.25 + 1 + 2 + 0.25 + 2)


def test_a_skip_waits_for_its_own_producer() -> None:
    passes = timeline(schedule("gpipe", 3, 1), [1.0] * 3, [1.0] * 3, {(0, 1): 0.0, (1, 2): 0.0, (0, 2): 5.0})
    assert passes.partitions[2][0].begin == pytest.approx(6.0)


def test_a_schedule_that_never_ends_is_refused() -> None:
    with pytest.raises(PlanError, match="never ends"):
        timeline(schedule("1f1b", 2, 2), [1.0] * 2, [1.0] * 2, {(1, 0): 0.0})
