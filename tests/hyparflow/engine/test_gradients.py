"""Which slots are summed together, with whom, and in which order."""

from __future__ import annotations

import numpy as np
from hyparflow.backends import Buffer, Reach, Slot
from hyparflow.engine.gradients import last_backward, runs_of, variables_with_gradients
from hyparflow.schedules import schedule


def _buffer(*names: str) -> Buffer:
    return Buffer(np.zeros(2 * len(names)), tuple(Slot(name, 2 * i, 2, (2,)) for i, name in enumerate(names)))


def test_what_one_stage_uses_alone_is_one_run() -> None:
    (run,) = runs_of(1, [_buffer("a", "b")], {"a": (1,), "b": (1,)})

    assert (run.begin, run.end) == (0, 4)


def test_a_shared_variable_is_a_run_of_its_own() -> None:
    users = {"a": (1,), "b": (1, 3), "c": (1, 3), "d": (1,)}

    runs = list(runs_of(1, [_buffer("a", "b", "c", "d")], users))

    assert [[slot.variable for slot in run.slots] for run in runs] == [["a"], ["b"], ["c"], ["d"]]


def test_each_buffer_has_runs_of_its_own() -> None:
    runs = list(runs_of(0, [_buffer("a"), _buffer("b")], {"a": (0,), "b": (0,)}))

    assert [run.buffer for run in runs] == [0, 1]


def test_under_the_interleaved_schedule_a_partitions_later_stage_is_complete_first() -> None:
    last = last_backward(schedule("interleaved", 2, 4, 2))

    assert last[2] < last[0]


def test_under_gems_a_stage_is_complete_with_the_later_of_its_two_pipelines() -> None:
    last = last_backward(schedule("gems", 2, 4))

    assert last[0] == last[1] == 7


def test_variables_have_gradients_where_a_loss_behind_them_reaches_them() -> None:
    def reach(*variables: str, received: tuple[int, ...] = ()) -> Reach:
        return Reach(frozenset(variables), frozenset(received))

    reaches = {
        0: {5: reach("to five"), 6: reach("to six")},
        1: {7: reach("to seven", received=(5,)), 8: reach("to eight", received=(6,))},
        2: {None: reach("last", received=(7,))},
    }

    assert variables_with_gradients(reaches) == {"to five", "to seven", "last"}
